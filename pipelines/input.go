package pipelines

import "time"

// Collect is what the agent reads on a host: exactly one input.
type Collect struct {
	File     *FileInput
	Stdin    *StdinInput
	Pipe     *PipeInput
	Exec     *ExecInput
	Syslog   *SyslogInput
	Journald *JournaldInput
	Labels   []Label // in the file's order
}

// InputOptions are the settings that every input has.
type InputOptions struct {
	LineBytesMax int       // longer lines are cut here; default 1 MiB, 64 B to 16 MiB
	Headers      bool      // default true: headers that tell where a record is from, such as host and path
	RateLimit    RateLimit // of the whole input
}

// RateLimit bounds what an input takes in a second; what is over it waits where it is. 0 is no limit.
type RateLimit struct {
	Lines int64
	Bytes int64
}

// Input is the name of the input, as in the file.
func (c *Collect) Input() string {
	name, _ := c.input()
	return name
}

// Options are the settings of the input that every input has.
func (c *Collect) Options() *InputOptions {
	_, o := c.input()
	return o
}

func (c *Collect) input() (string, *InputOptions) {
	switch {
	case c.File != nil:
		return "file", &c.File.InputOptions
	case c.Stdin != nil:
		return "stdin", &c.Stdin.InputOptions
	case c.Pipe != nil:
		return "pipe", &c.Pipe.InputOptions
	case c.Exec != nil:
		return "exec", &c.Exec.InputOptions
	case c.Syslog != nil:
		return "syslog", &c.Syslog.InputOptions
	case c.Journald != nil:
		return "journald", &c.Journald.InputOptions
	}
	return "", nil // not after Parse
}

// stage is the parser that an input brings along; nil when its lines are raw.
func (c *Collect) stage() *ParseStage {
	switch {
	case c.File != nil && c.File.Container != nil && c.File.Container.JSON:
		return &ParseStage{Parser: ParserJSON, Optional: true, Pos: c.File.Container.Pos}
	case c.Syslog != nil && c.Syslog.Format == InputEvent:
		return &ParseStage{Parser: ParserSyslog, Zone: c.Syslog.Zone, Pos: c.Syslog.Pos}
	case c.Journald != nil && c.Journald.Format == InputEvent:
		return &ParseStage{Parser: ParserJournald, Pos: c.Journald.Pos}
	}
	return nil
}

// InputFormat says what an input makes of a message.
type InputFormat string

// The formats.
const (
	InputEvent InputFormat = "event" // its fields
	InputRaw   InputFormat = "raw"   // the message as it came
)

// StdinInput is `collect.stdin`: the lines of the process's standard input.
type StdinInput struct {
	InputOptions // headers: host
	LineOptions
}

// PipeInput is `collect.pipe`: a named pipe, into which writers come and go.
type PipeInput struct {
	InputOptions // headers: host and path
	LineOptions
	Path   string
	Create bool // default true: the pipe is made where there is nothing
}

// ExecInput is `collect.exec`: the lines that a command prints.
type ExecInput struct {
	InputOptions // headers: host, and stream (stdout or stderr)
	LineOptions
	Command     []string      // the program and its arguments, at least one; no shell reads them
	Directory   string        // working directory; "": the process's own
	Environment []Label       // on top of the process's own
	Stderr      ExecStderr    // default lines
	Interval    time.Duration // 0: the command runs on, and is started again when it ends; else it is started this often
	Timeout     time.Duration // with Interval: when a run is killed; 0: never
	RestartMax  time.Duration // without Interval: the longest pause before a restart; default 1 min
}

// ExecStderr says what becomes of a command's standard error.
type ExecStderr string

// The ways.
const (
	ExecStderrLines ExecStderr = "lines" // lines like those of standard output
	ExecStderrLog   ExecStderr = "log"   // into the agent's own log
	ExecStderrDrop  ExecStderr = "drop"
)

// SyslogInput is `collect.syslog`: messages that come over sockets.
type SyslogInput struct {
	InputOptions   // headers: host, and peer (the sender's address)
	Pos            Pos
	Listen         []SyslogListen // at least one
	Format         InputFormat    // default event
	Zone           string         // of times without one: a name of the IANA database, UTC, or local; default local
	TLS            *ServerTLS     // nil: none of Listen is tls
	ConnectionsMax int            // default 1,000; at most 100,000
	IdleTimeout    time.Duration  // a connection is closed after this; 0: never
	ReceiveBuffer  int            // bytes that the system keeps for each datagram socket; default 4 MiB
	SocketMode     uint32         // permissions of a Unix socket; default 0666
	Multiline      *Multiline     // of the messages of one host, application and process; nil: each message is a record
}

// SyslogListen is a place to listen at.
type SyslogListen struct {
	Network string // tcp, tls, udp, unix or unixgram
	Address string // host:port, or a path
}

// String is the place as in the file.
func (l SyslogListen) String() string { return l.Network + "://" + l.Address }

// ServerTLS is a server's TLS settings.
type ServerTLS struct {
	CertFile string // PEM
	KeyFile  string // PEM
	ClientCA string // PEM; "": clients need no certificate
}

// JournaldInput is `collect.journald`: the entries of systemd's journal.
type JournaldInput struct {
	InputOptions // headers: host
	Pos          Pos
	Units        []string      // entries of these units; empty: of all
	Matches      []string      // FIELD=VALUE, as journalctl takes them
	Boot         bool          // only entries of this boot
	StartAt      StartAt       // at the very first start; default beginning
	IgnoreOlder  time.Duration // entries that are older at the very first start are passed over; 0: none
	Format       InputFormat
	Directory    string     // of journal files; "": the machine's own
	Multiline    *Multiline // of the messages of one unit and process; nil: each entry is a record
	Command      []string   // journalctl, with arguments that come before the agent's; default [journalctl]
}
