package commitlog

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMembership(t *testing.T) {
	dir := t.TempDir()
	if m, ok, err := ReadMembership(OSFS{}, dir); ok || err != nil {
		t.Errorf("%+v, %v, %v", m, ok, err)
	}
	want := Membership{ZooKeeper: "a:1,b:2/sluice", BootID: "boot"}
	if err := WriteMembership(OSFS{}, dir, want); err != nil {
		t.Fatal(err)
	}
	if m, ok, err := ReadMembership(OSFS{}, dir); m != want || !ok || err != nil {
		t.Errorf("%+v, %v, %v", m, ok, err)
	}
	if err := os.WriteFile(filepath.Join(dir, MembershipFile), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m, _, err := ReadMembership(OSFS{}, dir); err == nil {
		t.Errorf("%+v of nonsense", m)
	}
}
