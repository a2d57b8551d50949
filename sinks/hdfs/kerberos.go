package hdfs

import (
	"fmt"
	"strings"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/keytab"

	"github.com/sluice-io/sluice/pipelines"
)

// login gets a ticket for the principal, which the client then renews by itself.
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
		return nil, fmt.Errorf("kerberos: log in as %s: %w", k.Principal, err)
	}
	return c, nil
}

func hasKey(keys *keytab.Keytab, name, realm string) bool {
	for _, e := range keys.Entries {
		if e.Principal.Realm == realm && strings.Join(e.Principal.Components, "/") == name {
			return true
		}
	}
	return false
}
