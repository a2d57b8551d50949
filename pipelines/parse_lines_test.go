package pipelines

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLineOptions(t *testing.T) {
	for _, tc := range []struct {
		yaml string
		want LineOptions
	}{
		{"{}", LineOptions{Encoding: EncodingUTF8, InvalidUTF8: InvalidKeep}},
		{"{encoding: utf-16le, invalid_utf8: replace}",
			LineOptions{Encoding: EncodingUTF16LE, InvalidUTF8: InvalidReplace}},
		{"{multiline: {preset: java}}", LineOptions{Encoding: EncodingUTF8, InvalidUTF8: InvalidKeep,
			Multiline: &Multiline{Preset: "java", LinesMax: 500, BytesMax: 1 << 20, Idle: time.Second}}},
		{`{multiline: {start: '^\d', end: {match: '\\$', negate: true}, lines_max: 20, bytes_max: 64KiB, idle: 5s}}`,
			LineOptions{Encoding: EncodingUTF8, InvalidUTF8: InvalidKeep, Multiline: &Multiline{
				Start: &LinePattern{Match: `^\d`}, End: &LinePattern{Match: `\\$`, Negate: true}, LinesMax: 20, BytesMax: 64 << 10, Idle: 5 * time.Second}}},
	} {
		pipes, err := Parse("p.yaml", []byte("pipeline: p\ncollect: {file: {include: [a], "+tc.yaml[1:]+"}\n"))
		if tc.yaml == "{}" {
			pipes, err = Parse("p.yaml", []byte("pipeline: p\ncollect: {file: {include: [a]}}\n"))
		}
		if err != nil {
			t.Errorf("%s: %v", tc.yaml, err)
			continue
		}
		if diff := cmp.Diff(tc.want, pipes[0].Collect.File.LineOptions); diff != "" {
			t.Errorf("%s: %s", tc.yaml, diff)
		}
	}
}
