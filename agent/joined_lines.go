package agent

import (
	"context"

	"github.com/sluice-io/sluice/agent/assemble"
	"github.com/sluice-io/sluice/agent/journald"
	"github.com/sluice-io/sluice/pipelines"
)

// collector returns what runs the feed, with records of several lines where that is asked for.
func (s *streams) collector(ctx context.Context) func() {
	c := s.pipe.Collect
	var m *pipelines.Multiline
	read := func() lineReader { return &journalLines{} }
	switch {
	case c.Syslog != nil:
		m = c.Syslog.Multiline
		read = func() lineReader { return &syslogLines{} }
	case c.Journald != nil:
		m = c.Journald.Multiline
	}
	state, at, itself := resumeAt(s.acked.Cursor)
	if f, ok := s.feed.(seeker); ok {
		f.Seek(at, itself)
	}
	if m == nil && !state.resuming() {
		return func() { s.feed.Run(ctx, s) }
	}
	j := newJoining(s, s.joins, s.joinIdle, s.cfg.Now, read)
	j.resume = state
	if c.Journald != nil {
		j.openMax = joinedCursorsMax
	}
	s.joining.Store(j)
	s.helpers.Go(func() { j.watch(ctx) })
	return func() {
		s.feed.Run(ctx, j)
		j.finish(s.cfg.Once)
	}
}

// joinConfig says how an input whose sources lie across each other joins lines. Without settings each line is a record.
func (s *streams) joinConfig() (err error) {
	c := s.pipe.Collect
	var m *pipelines.Multiline
	switch {
	case c.Syslog != nil:
		m = c.Syslog.Multiline
	case c.Journald != nil:
		m = c.Journald.Multiline
	}
	if m == nil {
		s.joins.End, err = assemble.NewPattern("", false)
		return err
	}
	s.joins, err = assembleConfig(m, c.Options().LineBytesMax)
	s.joinIdle = m.Idle
	return err
}

// syslogLines reads syslog messages: lines of one host, application and process belong together. What is no syslog is of whoever sends it.
type syslogLines struct {
	parser pipelines.SyslogReader
	value  []byte
}

// read implements lineReader.
func (r *syslogLines) read(line []byte) (joinedSource, []byte, string, bool) {
	from, text := r.parser.Read(line)
	return joinedSource{from.Host, from.App, from.ProcID}, text, "", true
}

// compose implements lineReader: the first message goes on with the texts of the others.
func (r *syslogLines) compose(first *joinedFirst, text []byte) []byte {
	r.value = append(append(r.value[:0], first.raw...), text[first.text:]...)
	return r.value
}

// Fields of the journal's entries.
const (
	journalMessage = "MESSAGE"
	journalBoot    = "_BOOT_ID"
	journalUnit    = "_SYSTEMD_UNIT"
	journalUser    = "_SYSTEMD_USER_UNIT"
	journalTag     = "SYSLOG_IDENTIFIER"
	journalPID     = "_PID"
)

// journalLines reads entries of systemd's journal: messages of one unit and process, within one boot, belong together.
type journalLines struct {
	event pipelines.Event
	value []byte
}

// read implements lineReader.
func (r *journalLines) read(line []byte) (source joinedSource, text []byte, cursor string, ok bool) {
	cursor, _ = journald.CursorOf(line)
	r.event.Reset(line)
	if err := r.event.DecodeJSON(line); err != nil {
		return source, nil, cursor, false
	}
	source = joinedSource{host: r.text(journalBoot), app: r.text(journalUnit) + "/" + r.text(journalUser), process: r.text(journalPID)}
	if source.app == "/" {
		source.app = r.text(journalTag)
	}
	text, ok = r.event.JournalText(journalMessage) // else it is bytes that are no text, or none
	return source, text, cursor, ok
}

func (r *journalLines) text(name string) string {
	text, _ := r.event.JournalText(name)
	return string(text)
}

// compose implements lineReader: the first entry gets the text of all.
func (r *journalLines) compose(first *joinedFirst, text []byte) []byte {
	r.event.Reset(first.raw)
	if err := r.event.DecodeJSON(first.raw); err != nil {
		return first.raw // it was read before
	}
	r.event.Set(journalMessage, pipelines.String(text))
	r.value = r.event.AppendJSON(r.value[:0])
	return r.value
}
