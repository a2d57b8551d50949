package broker

import "github.com/twmb/franz-go/pkg/kversion"

// heldTo holds a client to one version of one request kind.
func heldTo(key, version int16) *kversion.Versions {
	v := kversion.Tip()
	v.SetMaxKeyVersion(key, version)
	return v
}
