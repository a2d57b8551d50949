package testenv

import "testing"

// The principal of all nodes of an HDFS in secure mode. Its user may do everything, which DataNodes must as well.
const (
	hdfsSuperuser = "nn"
	hdfsService   = hdfsSuperuser + "/127.0.0.1"
)

// Security is how an HDFS in secure mode knows its clients, and what protects what they send.
type Security struct {
	KDC        *KDC
	Requests   string // what protects requests to the NameNode: authentication, integrity or privacy
	Blocks     string // what protects what goes to DataNodes
	Encrypted  bool   // the NameNode gives out keys that end, by which what goes to DataNodes is encrypted whatever Blocks says
	WithoutAES bool   // privacy is RC4 then
	Keytab     string // of the nodes
}

// Secure returns a Security, whose KDC knows the nodes of the HDFS then.
func Secure(t testing.TB, kdc *KDC, requests, blocks string) *Security {
	t.Helper()
	kdc.AddPrincipal(t, hdfsService)
	return &Security{KDC: kdc, Requests: requests, Blocks: blocks, Keytab: kdc.Keytab(t, hdfsService)}
}

// Superuser is the principal of the user who may do everything.
func (s *Security) Superuser() string { return hdfsService + "@" + s.KDC.Realm }

// configure changes a configuration to one that demands Kerberos.
func (s *Security) configure(core, site map[string]string) {
	core["hadoop.security.authentication"] = "kerberos"
	core["hadoop.rpc.protection"] = s.Requests
	for _, role := range []string{"namenode", "datanode"} {
		site["dfs."+role+".kerberos.principal"] = s.Superuser()
		site["dfs."+role+".keytab.file"] = s.Keytab
	}
	site["dfs.block.access.token.enable"] = "true"
	site["dfs.data.transfer.protection"] = s.Blocks
	site["ignore.secure.ports.for.testing"] = "true" // else a DataNode wants root's ports, or TLS for its web interface
	if s.Encrypted {
		site["dfs.encrypt.data.transfer"] = "true"
	}
	if !s.WithoutAES {
		site["dfs.encrypt.data.transfer.cipher.suites"] = "AES/CTR/NoPadding"
	}
}
