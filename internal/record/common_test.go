package record

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// What is checked in runs is judged as it is record by record: well-formed records of
// many shapes, and the same with some bytes changed.
func TestCommonRecordsJudgeAlike(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 11))
	refused, ran := 0, 0
	for range 1000 {
		b := randomBatch(t, rng)
		for range rng.IntN(3) {
			b[HeaderBytes+rng.IntN(len(b)-HeaderBytes)] = byte(rng.Uint32())
		}
		v := Validator{RequireKey: rng.IntN(4) == 0}
		if least, most := int64(1000), int64(1<<21); rng.IntN(2) == 0 {
			v.TimestampMin, v.TimestampMax = &least, &most
		}
		alone := v
		got, want := fmt.Sprint(v.checkRecords(bytes.Clone(b))), fmt.Sprint(alone.checkAlone(b))
		if got != want || want == "<nil>" && v.largest != alone.largest {
			t.Fatalf("in runs: %s, largest %d; one by one: %s, largest %d; batch %x", got, v.largest, want, alone.largest, b)
		}
		if want != "<nil>" {
			refused++
		}
		ran += commonRecords(b.Payload(), 0, int(b.Count()), false).records
	}
	if refused < 150 || refused > 850 || ran < 3000 {
		t.Errorf("%d of 1000 batches refused, %d records in runs", refused, ran)
	}
}

func randomBatch(t *testing.T, rng *rand.Rand) Batch {
	lengths := []int{0, 1, 50, 63, 64, 300, 8191, 8192, 20_000}
	some := func() []byte {
		if rng.IntN(8) == 0 {
			return nil
		}
		return make([]byte, lengths[rng.IntN(1+rng.IntN(len(lengths)))])
	}
	records := make([]Record, 1+rng.IntN(100))
	if rng.IntN(20) == 0 {
		records = make([]Record, 9000) // offset deltas of three bytes
	}
	for i := range records {
		records[i] = Record{Timestamp: 1000 + rng.Int64N(1<<(1+rng.IntN(22))), Value: some()}
		if len(records) < 1000 {
			records[i].Key = some()
			if rng.IntN(20) == 0 {
				records[i].Headers = []Header{{Key: "k", Value: some()}}
			}
		}
	}
	return build(t, BuildOptions{}, records)
}

// checkAlone is checkRecords without runs.
func (v *Validator) checkAlone(b Batch) (err error) {
	v.batch, v.largest, v.bad = b, NoTimestamp, nil
	rest := b.Payload()
	for i := range int(b.Count()) {
		if rest, err = v.checkOne(rest, i); err != nil {
			return err
		}
	}
	if len(rest) > 0 {
		return invalidBatch("%d bytes left over after %d records", len(rest), b.Count())
	}
	if v.bad != nil {
		return v.bad
	}
	return nil
}
