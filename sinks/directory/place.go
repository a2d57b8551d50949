package directory

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// columnNoTime marks rows that were placed by their record's timestamp because they have no event time that can be read.
const columnNoTime = "_no_event_time"

// pathBytesMax bounds a row's path, and segmentBytesMax each directory of it: file systems take 255 bytes.
const (
	pathBytesMax    = 2000
	segmentBytesMax = 250
)

var (
	errPathLong = fmt.Errorf("its path would be longer than %d bytes, or a directory of it than %d", pathBytesMax, segmentBytesMax)
	errPaths    = errors.New("the batch has rows for too many paths: take what has so many values out of the path, or raise paths_max")
)

// hiveNull stands for a null in a path, as in tables of Hive.
const hiveNull = "__HIVE_DEFAULT_PARTITION__"

// group is the rows of a block that go into one file.
type group struct {
	path string // of the directory; "" is the root
	part timePartition
	rows []int32 // of the block; while there is but one group it has all rows, and none is noted
}

// placer decides into which file a row goes. A row is late when the log had records, up to that row, that were taken in later than the end of the row's time
// partition and the allowed lateness: this depends on the log alone, so a claim written again is placed as it was. Not safe for concurrent use.
type placer struct {
	cfg       *pipelines.Partitioning // nil: everything goes to the root
	watermark func(partition int32) int64
	time      *pipelines.Expression // nil: the record's timestamp
	path      *route
	late      *route // nil unless late rows have a path of their own

	groups []group
	index  map[string]int
	rows   int
	basis  int64 // the watermark before the first row, in milliseconds
	latest int64 // the largest timestamp so far
	noTime bool  // of the row asked for last: see columnNoTime
}

// newPlacer compiles the paths; watermark gives a partition's before a batch.
func newPlacer(cfg *pipelines.Partitioning, watermark func(partition int32) int64) (*placer, error) {
	p := &placer{cfg: cfg, watermark: watermark, index: map[string]int{}}
	p.reset()
	if cfg == nil {
		return p, nil
	}
	var err error
	if cfg.Time != nil {
		if p.time, err = cfg.Time.NewExpression(); err != nil {
			return nil, fmt.Errorf("compile partition.time: %w", err)
		}
	}
	if p.path, err = newRoute(cfg.Path, cfg.Zone); err != nil {
		return nil, err
	}
	if cfg.LatePath != nil {
		p.late, err = newRoute(cfg.LatePath, cfg.Zone)
	}
	return p, err
}

// decidesLate says that where rows go depends on the watermark.
func (p *placer) decidesLate() bool { return p.cfg != nil && p.cfg.Late != pipelines.LateKeep }

func (p *placer) reset() {
	p.groups, p.rows, p.basis, p.latest = p.groups[:0], 0, 0, 0
	clear(p.index)
	if p.cfg == nil {
		p.groups = append(p.groups, group{})
	}
}

// place is the group an event belongs to. It is put there by put, once the block has taken the row.
func (p *placer) place(e *pipelines.Event) (int, error) {
	stamp := e.Meta.Time.UnixMilli()
	if p.basis == 0 && p.latest == 0 && p.watermark != nil {
		p.basis = p.watermark(e.Meta.Partition)
	}
	p.latest = max(p.latest, stamp)
	p.noTime = false
	if p.cfg == nil {
		return 0, nil
	}
	t := p.timeOf(e)
	end := p.path.endOf(t)
	to := p.path
	if p.decidesLate() && p.path.unit != 0 && end+p.cfg.Lateness.Milliseconds() < max(p.basis, p.latest) {
		if p.late == nil {
			return 0, &sinks.RejectError{Column: "partition.path", Err: fmt.Errorf("%w: its time partition ended at %s",
				sinks.ErrLate, time.UnixMilli(end).In(p.cfg.Zone).Format(time.RFC3339))}
		}
		to = p.late
	}
	text, err := to.render(e, t)
	if err != nil {
		return 0, &sinks.RejectError{Column: "partition.path", Err: err}
	}
	if i, ok := p.index[string(text)]; ok {
		return i, nil
	}
	return p.open(string(text), to, end)
}

// open makes a group for a path.
func (p *placer) open(text string, to *route, end int64) (int, error) {
	if len(p.groups) >= p.cfg.PathsMax {
		return 0, &sinks.RejectError{Column: "partition.path", Err: errPaths}
	}
	if !fits(text) {
		return 0, &sinks.RejectError{Column: "partition.path", Err: errPathLong}
	}
	g := group{path: text}
	if p.cfg.Success && to == p.path {
		g.part = timePartition{Dir: firstSegments(text, to.segments), End: end}
	}
	if len(p.groups) == 1 { // from now on it matters which rows are whose
		for i := range p.rows {
			p.groups[0].rows = append(p.groups[0].rows, int32(i))
		}
	}
	p.groups = append(p.groups, g)
	p.index[text] = len(p.groups) - 1
	return len(p.groups) - 1, nil
}

// put notes the next row as one of a group.
func (p *placer) put(group int) {
	if len(p.groups) > 1 {
		p.groups[group].rows = append(p.groups[group].rows, int32(p.rows))
	}
	p.rows++
}

// timeOf is the event's time; where it has none that can be read, its record's.
func (p *placer) timeOf(e *pipelines.Event) time.Time {
	if p.time == nil || p.path.unit == 0 {
		return e.Meta.Time
	}
	var v pipelines.Value
	if err := p.time.Eval(e, &v); err == nil && !v.IsNull() {
		if t, err := v.ToTime(); err == nil {
			return t
		}
	}
	p.noTime = true
	return e.Meta.Time
}

func fits(p string) bool {
	for segment := range strings.SplitSeq(p, "/") {
		if len(segment) > segmentBytesMax {
			return false
		}
	}
	return len(p) <= pathBytesMax
}

func firstSegments(p string, n int) string {
	for i := range len(p) {
		if p[i] == '/' {
			if n--; n == 0 {
				return p[:i]
			}
		}
	}
	return p
}

// route renders a path template. Not safe for concurrent use.
type route struct {
	parts    []pipelines.PathPart
	values   []*pipelines.Expression // by part, nil for those that are none
	unit     pipelines.TimeUnit
	zone     *time.Location
	segments int // up to the last that has a time: the time partition's directory

	// The time partition that was asked for last, and its text.
	from, to time.Time
	times    [][]byte // by part
	buf      []byte
}

func newRoute(t *pipelines.PathTemplate, zone *time.Location) (*route, error) {
	r := &route{parts: t.Parts, unit: t.Unit, zone: zone, values: make([]*pipelines.Expression, len(t.Parts)), times: make([][]byte, len(t.Parts))}
	at := 1
	for i, p := range t.Parts {
		at += strings.Count(p.Text, "/")
		switch {
		case p.Time != 0:
			r.segments = at
		case p.Expr != nil:
			var err error
			if r.values[i], err = p.Expr.NewExpression(); err != nil {
				return nil, fmt.Errorf("compile the path %s: %w", t.Text, err)
			}
		}
	}
	return r, nil
}

// endOf is the end of the time partition of t, in milliseconds; 0 for a path without times.
func (r *route) endOf(t time.Time) int64 {
	if r.unit == 0 {
		return 0
	}
	r.seek(t)
	return r.to.UnixMilli()
}

// seek brings from, to and times to the time partition of t.
func (r *route) seek(t time.Time) {
	if !t.Before(r.from) && t.Before(r.to) && !r.repeats() {
		return
	}
	r.from, r.to = r.unit.Span(t, r.zone)
	t = t.In(r.zone)
	for i, p := range r.parts {
		switch p.Time {
		case 'Y':
			r.times[i] = fmt.Appendf(r.times[i][:0], "%04d", t.Year())
		case 'm':
			r.times[i] = fmt.Appendf(r.times[i][:0], "%02d", int(t.Month()))
		case 'd':
			r.times[i] = fmt.Appendf(r.times[i][:0], "%02d", t.Day())
		case 'H':
			r.times[i] = fmt.Appendf(r.times[i][:0], "%02d", t.Hour())
		case 'M':
			r.times[i] = fmt.Appendf(r.times[i][:0], "%02d", t.Minute())
		}
	}
}

// repeats says that the clock shows the time partition's time twice, so that others lie in between.
func (r *route) repeats() bool {
	return r.unit == pipelines.UnitMinute && r.to.Sub(r.from) > time.Minute
}

// render returns the path for an event; valid until the next call.
func (r *route) render(e *pipelines.Event, t time.Time) ([]byte, error) {
	if r.unit != 0 {
		r.seek(t)
	}
	dst := r.buf[:0]
	for i, p := range r.parts {
		switch {
		case p.Time != 0:
			dst = append(dst, r.times[i]...)
		case p.Expr != nil:
			var v pipelines.Value
			if err := r.values[i].Eval(e, &v); err != nil {
				return nil, err
			}
			dst = appendSegment(dst, v)
		default:
			dst = append(dst, p.Text...)
		}
	}
	r.buf = dst
	return dst, nil
}

// appendSegment appends a value in the form that Hive gives values in paths: a slash in it makes no directory, and it makes no name that is hidden.
func appendSegment(dst []byte, v pipelines.Value) []byte {
	if v.IsNull() {
		return append(dst, hiveNull...)
	}
	start := len(dst)
	text := v.AppendText(nil)
	if len(text) == 0 {
		return append(dst, hiveNull...)
	}
	first := start == 0 || dst[start-1] == '/'
	for i, c := range text {
		if c < ' ' || c == 0x7f || strings.IndexByte(`"#%'*/:=?\{[]^`, c) >= 0 || i == 0 && first && (c == '.' || c == '_') {
			dst = fmt.Appendf(dst, "%%%02X", c)
			continue
		}
		dst = append(dst, c)
	}
	return dst
}
