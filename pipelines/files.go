package pipelines

import (
	"io/fs"
	"time"
)

// Files is what a sink that makes files can be told, wherever they lie.
type Files struct {
	Path         string      // the directory of all its files
	Format       Format      // default parquet
	Compression  Compression // default zstd; of Avro deflate is another
	RowGroupRows int         // of Parquet: rows of a row group; default 1,000,000
	FileMode     fs.FileMode // default 0644
	DirMode      fs.FileMode // default 0755

	Partition *Partitioning // nil: all files lie in Path itself
}

// Directory is a local directory as destination. A relative path is relative
// to the working directory of the process.
type Directory struct {
	Files
	Sync bool // files and directories are synced before they count as stored; default true
}

// HDFS is a directory of an HDFS as destination.
type HDFS struct {
	Files
	NameNodes    []string // host:port; several are those of one cluster with failover
	User         string   // default: the user that runs the process; with Kerberos it is the principal's
	Kerberos     *Kerberos
	Replication  int           // copies of a block; 0: the cluster's default
	BlockSize    int64         // bytes; 0: the cluster's default
	Timeout      time.Duration // of a connection that is not answered; default 30 s
	UseHostnames bool          // DataNodes are reached by name rather than by address
}

// Kerberos is how a client of HDFS authenticates.
type Kerberos struct {
	Principal  string // NAME[/HOST]@REALM
	Keytab     string // file with the principal's keys
	Config     string // krb5.conf; default /etc/krb5.conf
	Service    string // of the NameNodes, such as nn/_HOST
	Protection string // authentication, integrity or privacy of what goes to DataNodes; "": what the cluster asks for
}

// Partitioning says under which path below Files.Path a row is stored.
type Partitioning struct {
	Path *PathTemplate
	Time *Source        // event time; nil: the record's timestamp
	Zone *time.Location // in which the path's times are; default UTC

	Lateness time.Duration // after the end of a row's time partition, within which it is not late; default 1 h
	Late     LatePolicy    // default keep
	LatePath *PathTemplate // for LatePath

	Success  bool // _SUCCESS in time partitions that are complete
	PathsMax int  // of one batch; default 1000
}

// LatePolicy says where rows go that come later than their time partition's end and the allowed lateness.
type LatePolicy string

// The policies.
const (
	LateKeep       LatePolicy = "keep"        // to their own partition all the same
	LateToPath     LatePolicy = "path"        // to a path of their own
	LateDeadLetter LatePolicy = "dead_letter" // to the dead-letter topic
)

// Files is the part of the sink's settings that all sinks of files share; nil for other sinks.
func (s *SinkSpec) Files() *Files {
	switch {
	case s.Directory != nil:
		return &s.Directory.Files
	case s.HDFS != nil:
		return &s.HDFS.Files
	}
	return nil
}

// NewExpression compiles an expression that Parse has checked.
func (s *Source) NewExpression() (*Expression, error) { return s.expression() }
