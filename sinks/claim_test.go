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
	n, ok := parseNote(text)
	want := commitNote{topicID: c.TopicID, claim: true, hi: 199, epoch: 3, schema: "00ff", server: "ch 1:9000"}
	if !ok || n != want {
		t.Errorf("read back %+v (%t), want %+v", n, ok, want)
	}
	if want := "access/ch/0102ff00000000000000000000000000/7/100-199/3"; c.Identity() != want {
		t.Errorf("identity %q, want %q", c.Identity(), want)
	}
}

func TestClosedMetadata(t *testing.T) {
	n, ok := parseNote(closedMetadata(TopicID{9}))
	if !ok || n.claim || n.topicID != (TopicID{9}) {
		t.Errorf("read back %+v, %t", n, ok)
	}
}

func TestLongServerNameIsCutAtTheBrokersLimit(t *testing.T) {
	c := Claim{Hi: 5, Server: strings.Repeat("s", 10_000)}
	text := c.metadata()
	if len(text) != metadataBytesMax {
		t.Errorf("%d bytes", len(text))
	}
	if n, ok := parseNote(text); !ok || !n.claim || n.hi != 5 {
		t.Errorf("read back %+v, %t", n, ok)
	}
}

func TestMetadataOfOthersIsNoClaim(t *testing.T) {
	for _, text := range []string{"", "some-member-id", "sluice1", "sluice1 hi=5", "sluice1 hi=x epoch=1 topic=00", "sluice2 hi=5 epoch=1",
		"sluice1 hi=5 epoch=1 topic=" + TopicID{}.String()} {
		if n, ok := parseNote(text); ok {
			t.Errorf("%q was read as %+v", text, n)
		}
	}
}

func FuzzParseNote(f *testing.F) {
	f.Add(Claim{Hi: 5, Schema: "x", Server: "y"}.metadata())
	f.Add(closedMetadata(TopicID{}))
	f.Fuzz(func(t *testing.T, text string) {
		n, ok := parseNote(text)
		if !ok || !n.claim {
			return
		}
		again, ok := parseNote(Claim{Hi: n.hi, Epoch: n.epoch, TopicID: n.topicID, Schema: n.schema, Server: n.server}.metadata())
		if !ok || again.hi != n.hi || again.epoch != n.epoch || again.topicID != n.topicID {
			t.Errorf("%q: %+v became %+v", text, n, again)
		}
	})
}
