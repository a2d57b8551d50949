package sinks

import (
	"strings"
	"testing"
)

func TestClaimTravelsInMetadata(t *testing.T) {
	c := Claim{
		Pipeline: "access", Sink: "ch", Topic: "access", TopicID: TopicID{1, 2, 255}, Partition: 7,
		Lo: 100, Hi: 199, Epoch: 3, Schema: "00ff", Server: "ch 1:9000",
	}
	text := c.metadata()
	if want := "sluice1 hi=199 epoch=3 topic=0102ff00000000000000000000000000 schema=00ff server=ch 1:9000"; text != want {
		t.Errorf("metadata %q, want %q", text, want)
	}
	n, ok := ParseCommitNote(text)
	want := CommitNote{TopicID: c.TopicID, Claim: true, Hi: 199, Epoch: 3, Schema: "00ff", Server: "ch 1:9000"}
	if !ok || n != want {
		t.Errorf("read back %+v (%t), want %+v", n, ok, want)
	}
	if want := "access/ch/0102ff00000000000000000000000000/7/100-199/3"; c.Identity() != want {
		t.Errorf("identity %q, want %q", c.Identity(), want)
	}
}

func TestClosedMetadata(t *testing.T) {
	n, ok := ParseCommitNote(ClosedMetadata(TopicID{9}))
	if !ok || n.Claim || n.TopicID != (TopicID{9}) {
		t.Errorf("read back %+v, %t", n, ok)
	}
}

func TestLongServerNameIsCutAtTheBrokersLimit(t *testing.T) {
	c := Claim{Hi: 5, Server: strings.Repeat("s", 10_000)}
	text := c.metadata()
	if len(text) != metadataBytesMax {
		t.Errorf("%d bytes", len(text))
	}
	if n, ok := ParseCommitNote(text); !ok || !n.Claim || n.Hi != 5 {
		t.Errorf("read back %+v, %t", n, ok)
	}
}

func TestMetadataOfOthersIsNoClaim(t *testing.T) {
	for _, text := range []string{"", "some-member-id", "sluice1", "sluice1 hi=5", "sluice1 hi=x epoch=1 topic=00", "sluice2 hi=5 epoch=1",
		"sluice1 hi=5 epoch=1 topic=" + TopicID{}.String()} {
		if n, ok := ParseCommitNote(text); ok {
			t.Errorf("%q was read as %+v", text, n)
		}
	}
}

func FuzzParseNote(f *testing.F) {
	f.Add(Claim{Hi: 5, Schema: "x", Server: "y"}.metadata())
	f.Add(ClosedMetadata(TopicID{}))
	f.Fuzz(func(t *testing.T, text string) {
		n, ok := ParseCommitNote(text)
		if !ok || !n.Claim {
			return
		}
		again, ok := ParseCommitNote(Claim{Hi: n.Hi, Epoch: n.Epoch, TopicID: n.TopicID, Schema: n.Schema, Server: n.Server}.metadata())
		if !ok || again.Hi != n.Hi || again.Epoch != n.Epoch || again.TopicID != n.TopicID {
			t.Errorf("%q: %+v became %+v", text, n, again)
		}
	})
}
