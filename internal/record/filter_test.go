package record

import (
	"fmt"
	"testing"
)

// filterBatch makes a batch of three records, the second a tombstone.
func filterBatch(t *testing.T, opts BuildOptions) Batch {
	t.Helper()
	var b Builder
	b.Append(1000, []byte("a"), []byte("1"), []Header{{Key: "h", Value: []byte("x")}})
	b.Append(3000, []byte("b"), nil, nil)
	b.Append(2000, []byte("c"), []byte("3"), nil)
	batch, err := b.Build(opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

func dumpRecords(t *testing.T, b Batch) (out []string) {
	t.Helper()
	if err := b.CheckCRC(); err != nil {
		t.Fatal(err)
	}
	err := b.Each(nil, func(r *Record) error {
		out = append(out, fmt.Sprintf("%d %d %s=%s %d", r.Offset, r.Timestamp, r.Key, r.Value, len(r.Headers)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFilter takes records out of batches of each codec: what stays is as it
// was, also under the delete horizon, and so is all else of the batch.
func TestFilter(t *testing.T) {
	for codec := None; codec <= Zstd; codec++ {
		t.Run(codec.String(), func(t *testing.T) {
			var f Filter
			b := filterBatch(t, BuildOptions{Codec: codec, BaseOffset: 50, LeaderEpoch: 3, Idempotent: true, ProducerID: 9, ProducerEpoch: 2, BaseSequence: 70})
			keep := func(keys string) Filtered {
				out, err := f.Apply(b, 7777, func(r *Record) bool { return string(r.Key) != keys })
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			out := keep("b")
			if got, want := fmt.Sprint(dumpRecords(t, out.Batch)), "[50 1000 a=1 1 52 2000 c=3 0]"; got != want || out.Kept != 2 || !out.Changed {
				t.Fatalf("%s, %+v; want %s", got, out, want)
			}
			if _, marked := out.Batch.DeleteHorizon(); marked || out.Batch.MaxTimestamp() != 2000 || out.Batch.Count() != 2 {
				t.Fatal(marked, out.Batch.MaxTimestamp(), out.Batch.Count())
			}
			out = keep("a")
			if got, want := fmt.Sprint(dumpRecords(t, out.Batch)), "[51 3000 b= 0 52 2000 c=3 0]"; got != want {
				t.Fatalf("%s, want %s", got, want)
			}
			if ms, marked := out.Batch.DeleteHorizon(); !marked || ms != 7777 {
				t.Fatal(ms, marked)
			}
			o := out.Batch
			if o.BaseOffset() != 50 || o.LastOffset() != 52 || o.LeaderEpoch() != 3 || o.ProducerID() != 9 || o.ProducerEpoch() != 2 || o.LastSequence() != 72 || o.Codec() != codec {
				t.Fatalf("%d-%d %d %d %d %d %s", o.BaseOffset(), o.LastOffset(), o.LeaderEpoch(), o.ProducerID(), o.ProducerEpoch(), o.LastSequence(), o.Codec())
			}
			// The horizon stays what it was set to first.
			marked := append(Batch(nil), o...)
			out, err := f.Apply(marked, 8888, func(*Record) bool { return true })
			if err != nil || out.Changed {
				t.Fatalf("%+v, %v", out, err)
			}
			out, err = f.Apply(marked, 8888, func(r *Record) bool { return r.Value == nil })
			if got, want := fmt.Sprint(dumpRecords(t, out.Batch)), "[51 3000 b= 0]"; err != nil || got != want {
				t.Fatalf("%s, %v; want %s", got, err, want)
			}
			if out, err = f.Apply(b, 0, func(*Record) bool { return false }); err != nil || out.Batch != nil || !out.Changed {
				t.Fatalf("%+v, %v", out, err)
			}
			e := b.AppendEmpty(nil)
			if got := dumpRecords(t, e); len(got) != 0 || e.LastOffset() != 52 || e.LastSequence() != 72 || e.MaxTimestamp() != 3000 || len(e) != HeaderBytes {
				t.Fatalf("%v %d %d %d", got, e.LastOffset(), e.LastSequence(), e.MaxTimestamp())
			}
		})
	}
}

// TestFilterLogAppendTime keeps the broker's time of the records.
func TestFilterLogAppendTime(t *testing.T) {
	b := filterBatch(t, BuildOptions{})
	b.SetLogAppendTime(5000)
	var f Filter
	out, err := f.Apply(b, 9000, func(r *Record) bool { return string(r.Key) != "c" })
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(dumpRecords(t, out.Batch)), "[0 5000 a=1 1 1 5000 b= 0]"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}
