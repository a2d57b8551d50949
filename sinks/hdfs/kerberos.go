package hdfs

import (
	"fmt"
	"strings"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/keytab"

	"github.com/sluice-io/sluice/pipelines"
)

// login gets a ticket for the principal. The client gets the next before it ends, until it is destroyed.
func login(k *pipelines.Kerberos) (*client.Client, error) {
	conf, err := config.Load(k.Config)
	if err != nil {
		return nil, fmt.Errorf("kerberos.config: read %s: %w", k.Config, err)
	}
	keys, err := keytab.Load(k.Keytab)
	if err != nil {
		return nil, fmt.Errorf("kerberos.keytab: read %s: %w", k.Keytab, err)
	}
	name, realm, _ := strings.Cut(k.Principal, "@")
	if !hasKey(keys, name, realm) {
		return nil, fmt.Errorf("kerberos.keytab: %s has no key of %s", k.Keytab, k.Principal)
	}
	c := client.NewWithKeytab(name, realm, keys, conf, client.DisablePAFXFAST(true))
	if err := c.Login(); err != nil {
		return nil, fmt.Errorf("kerberos: log in as %s: %w%s", k.Principal, err, mend(err, k))
	}
	return c, nil
}

// mend says what to do about an error of the KDC, whose library has only its text.
func mend(err error, k *pipelines.Kerberos) string {
	text := err.Error()
	for _, known := range []struct{ code, mend string }{
		{"KDC_ERR_PREAUTH_FAILED", "the key in " + k.Keytab + " is not the principal's any more: write the keytab anew"},
		{"keytab incorrect", "the key in " + k.Keytab + " is not the principal's any more: write the keytab anew"},
		{"KDC_ERR_C_PRINCIPAL_UNKNOWN", "the KDC of " + k.Config + " does not know " + k.Principal},
		{"KRB_AP_ERR_SKEW", "this machine's clock and the KDC's differ: set them"},
		{"clock skew", "this machine's clock and the KDC's differ: set them"},
		{"KDC_ERR_ETYPE_NOSUPP", "the KDC has no key of a type that " + k.Config + " allows"},
		{"Networking_Error", "no KDC of " + k.Config + " answers"},
	} {
		if strings.Contains(text, known.code) {
			return " (" + known.mend + ")"
		}
	}
	return ""
}

func hasKey(keys *keytab.Keytab, name, realm string) bool {
	for _, e := range keys.Entries {
		if e.Principal.Realm == realm && strings.Join(e.Principal.Components, "/") == name {
			return true
		}
	}
	return false
}
