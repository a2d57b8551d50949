package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/keytab"
)

// kerberosPart is the KDC of MIT Kerberos, unpacked with the libraries of its own version. No machine must have it: tests go without it in CI too.
var kerberosPart = Part{
	Name:     "kerberos",
	Version:  "1.20.1",
	From:     "apt-get",
	toFetch:  []string{"apt-get", "dpkg-deb"},
	optional: true,
	fetch: func(ctx context.Context, dir, version string) error {
		own := []string{"krb5-kdc", "krb5-admin-server", "libkrb5-3", "libk5crypto3", "libkrb5support0", "libgssapi-krb5-2", "libgssrpc4", "libkadm5srv-mit12", "libkdb5-10"}
		for i := range own {
			own[i] += "=" + version + "*"
		}
		return fetchDebian(ctx, dir, append(own, "libverto1", "libverto-libev1", "libev4", "libcom-err2", "libkeyutils1", "libss2")...)
	},
}

const (
	kdcRealm     = "SLUICE.TEST"
	kdcPrincipal = "ready" // who asks whether the KDC answers
)

// The clients' and the KDC's configuration. A ticket is refused 3 s after its end.
const (
	krb5Config = `[libdefaults]
 default_realm = %[1]s
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 clockskew = 3
 udp_preference_limit = 1
[realms]
 %[1]s = {
  kdc = %[2]s
 }
`
	kdcConfig = `[kdcdefaults]
 kdc_listen = ""
 kdc_tcp_listen = %[2]s
[realms]
 %[1]s = {
  database_name = %[3]s/principal
  key_stash_file = %[3]s/stash
  max_life = 1h
  max_renewable_life = 1d
  supported_enctypes = aes256-cts:normal aes128-cts:normal
  default_principal_flags = +preauth
 }
[dbmodules]
 db_module_dir = %[4]s
[logging]
 kdc = STDERR
`
)

// KDC is a key distribution center of MIT Kerberos, of a realm of its own.
type KDC struct {
	Addr  string // host:port of TCP; the port of UDP is testenv's lock
	Realm string
	again
	parts string
}

// StartKDC starts a KDC for t alone, which may be stopped, killed and restarted.
func StartKDC(t testing.TB) *KDC {
	t.Helper()
	k := &KDC{Addr: fmt.Sprintf("127.0.0.1:%d", FreePort(t)), Realm: kdcRealm, parts: need(t, kerberosPart), again: again{Dir: t.TempDir()}}
	modules, err := filepath.Glob(filepath.Join(k.parts, "usr/lib/*/krb5/plugins/kdb"))
	if err != nil || len(modules) != 1 {
		t.Fatalf("the KDC's database modules are in %q (%v)", modules, err)
	}
	k.write(t, "krb5.conf", fmt.Sprintf(krb5Config, k.Realm, k.Addr))
	k.write(t, "kdc.conf", fmt.Sprintf(kdcConfig, k.Realm, k.Addr, k.Dir, modules[0]))
	k.run(t, "kdb5_util", "create", "-s", "-r", k.Realm, "-P", "master")
	k.AddPrincipal(t, kdcPrincipal)
	keys := k.Keytab(t, kdcPrincipal)
	k.command = Command{Name: "krb5kdc", Path: filepath.Join(k.parts, "usr/sbin/krb5kdc"), Args: []string{"-n"}, Env: k.env(), Dir: k.Dir,
		Ready: func(context.Context) error { return k.login(keys) }}
	k.start(t)
	t.Cleanup(func() { k.Kill() })
	return k
}

// Config is the clients' krb5.conf.
func (k *KDC) Config() string { return filepath.Join(k.Dir, "krb5.conf") }

// AddPrincipal makes a principal with a random key. Its tickets live for an hour and may be renewed for a day, if kadmin's options do not say otherwise.
func (k *KDC) AddPrincipal(t testing.TB, name string, options ...string) {
	t.Helper()
	k.admin(t, fmt.Sprintf("addprinc -randkey %s %s", strings.Join(options, " "), name))
}

// ChangeKey gives a principal another key: keytabs made before are of no use then.
func (k *KDC) ChangeKey(t testing.TB, name string) {
	t.Helper()
	k.admin(t, "cpw -randkey "+name)
}

// RemovePrincipal has the KDC know a principal no more.
func (k *KDC) RemovePrincipal(t testing.TB, name string) {
	t.Helper()
	k.admin(t, "delprinc -force "+name)
}

// Keytab writes a file with the keys of principals.
func (k *KDC) Keytab(t testing.TB, names ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keytab")
	k.admin(t, fmt.Sprintf("ktadd -norandkey -k %s %s", file, strings.Join(names, " ")))
	return file
}

func (k *KDC) write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(k.Dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (k *KDC) env() []string {
	return []string{"LD_LIBRARY_PATH=" + libraryPath(k.parts), "KRB5_CONFIG=" + k.Config(), "KRB5_KDC_PROFILE=" + filepath.Join(k.Dir, "kdc.conf"), "KRB5RCACHENAME=none:"}
}

// admin gives kadmin a command, which it takes on the database itself.
func (k *KDC) admin(t testing.TB, query string) {
	t.Helper()
	k.run(t, "kadmin.local", "-r", k.Realm, "-q", query)
}

func (k *KDC) run(t testing.TB, tool string, args ...string) {
	t.Helper()
	p, err := launch(t.Context(), Command{Name: tool, Path: filepath.Join(k.parts, "usr/sbin", tool), Args: args, Env: k.env(), Dir: k.Dir}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Err(); err != nil || strings.Contains(p.Output(), tool+": ") { // kadmin fails with exit status 0
		t.Fatalf("%s %s: %v\n%s", tool, strings.Join(args, " "), err, p.Output())
	}
}

// login asks for a ticket as a client does.
func (k *KDC) login(keytabFile string) error {
	conf, err := config.Load(k.Config())
	if err != nil {
		return err
	}
	keys, err := keytab.Load(keytabFile)
	if err != nil {
		return err
	}
	c := client.NewWithKeytab(kdcPrincipal, k.Realm, keys, conf)
	defer c.Destroy()
	return c.Login()
}
