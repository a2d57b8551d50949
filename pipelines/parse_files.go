package pipelines

import (
	"io/fs"
	"regexp"
	"strings"
	"time"
	_ "time/tzdata" // zones by name, also on hosts without the database

	"github.com/goccy/go-yaml/ast"
)

// Defaults and limits of sinks that make files.
const (
	rowGroupRowsDefault = 1_000_000
	rowGroupRowsLow     = 100
	fileModeDefault     = fs.FileMode(0o644)
	dirModeDefault      = fs.FileMode(0o755)

	latenessDefault = time.Hour
	latenessHigh    = 366 * 24 * time.Hour
	pathsDefault    = 1000
	pathsHigh       = 100_000

	hdfsTimeoutDefault = 30 * time.Second
	hdfsTimeoutLow     = 100 * time.Millisecond
	hdfsTimeoutHigh    = 10 * time.Minute
	replicationHigh    = 512
	blockSizeLow       = 64 << 10
	blockSizeHigh      = 16 << 30
	blockSizeStep      = 512 // bytes of a checksum's chunk, of which a block is made
	kerberosConfig     = "/etc/krb5.conf"
)

// fileSettings are the keys that all sinks of files have. done is called when all are read.
func (r *yamlReader) fileSettings(f *Files, s *SinkSpec, what string) (keys []known, done func()) {
	*f = Files{Format: FormatParquet, Compression: CompressionZstd, RowGroupRows: rowGroupRowsDefault, FileMode: fileModeDefault, DirMode: dirModeDefault}
	var compression, rowGroup ast.Node
	keys = []known{
		{"path", func(e entry) { f.Path = r.text(e.value, what+".path") }},
		{"format", func(e entry) {
			f.Format = Format(r.oneOf(e.value, what+".format", string(FormatParquet), string(FormatJSON), string(FormatAvro)))
		}},
		{"compression", func(e entry) { compression = e.value }},
		{"row_group_rows", func(e entry) {
			rowGroup = e.value
			f.RowGroupRows = int(r.integer(e.value, what+".row_group_rows", rowGroupRowsLow, batchRowsMax))
		}},
		{"partition", func(e entry) { f.Partition = r.partitioning(e, what+".partition") }},
		{"file_mode", func(e entry) { f.FileMode = r.ownerMode(e.value, what+".file_mode") }},
		{"directory_mode", func(e entry) { f.DirMode = r.ownerMode(e.value, what+".directory_mode") }},
		{"columns", func(e entry) { s.Columns = r.assignments(e.value, what+".columns") }},
	}
	return keys, func() {
		if compression != nil {
			f.Compression = Compression(r.oneOf(compression, what+".compression", codecsOf(f.Format)...))
		}
		if rowGroup != nil && f.Format != FormatParquet {
			r.errorOn(rowGroup, "%s.row_group_rows: only Parquet has row groups, and the format is %s", what, f.Format)
		}
	}
}

// codecsOf are the codecs that files of a format may use.
func codecsOf(f Format) []string {
	switch f {
	case FormatJSON:
		return []string{string(CompressionNone), string(CompressionGzip), string(CompressionZstd)}
	case FormatAvro:
		return []string{string(CompressionNone), string(CompressionDeflate), string(CompressionSnappy), string(CompressionZstd)}
	}
	return []string{string(CompressionNone), string(CompressionGzip), string(CompressionSnappy), string(CompressionLZ4), string(CompressionZstd)}
}

func (r *yamlReader) directory(e entry, s *SinkSpec, what string) *Directory {
	d := &Directory{Sync: true}
	keys, done := r.fileSettings(&d.Files, s, what)
	keys = append(keys, known{"sync", func(e entry) { d.Sync = r.boolean(e.value, what+".sync") }})
	found := r.object(e.value, what, keys...)
	r.require(found, e.pos, what, "path")
	done()
	return d
}

func (r *yamlReader) hdfs(e entry, s *SinkSpec, what string) *HDFS {
	h := &HDFS{Timeout: hdfsTimeoutDefault}
	keys, done := r.fileSettings(&h.Files, s, what)
	keys = append(keys,
		known{"namenodes", func(e entry) { h.NameNodes = r.addresses(e.value, what+".namenodes") }},
		known{"user", func(e entry) { h.User = r.text(e.value, what+".user") }},
		known{"kerberos", func(e entry) { h.Kerberos = r.kerberos(e, what+".kerberos") }},
		known{"replication", func(e entry) { h.Replication = int(r.integer(e.value, what+".replication", 1, replicationHigh)) }},
		known{"block_size", func(e entry) {
			h.BlockSize = r.size(e.value, what+".block_size", blockSizeLow, blockSizeHigh)
			if h.BlockSize%blockSizeStep != 0 {
				r.errorOn(e.value, "%s.block_size: want a multiple of %d bytes", what, blockSizeStep)
			}
		}},
		known{"timeout", func(e entry) { h.Timeout = r.duration(e.value, what+".timeout", hdfsTimeoutLow, hdfsTimeoutHigh) }},
		known{"use_hostnames", func(e entry) { h.UseHostnames = r.boolean(e.value, what+".use_hostnames") }},
	)
	found := r.object(e.value, what, keys...)
	r.require(found, e.pos, what, "namenodes", "path")
	done()
	if pos, ok := found["path"]; ok && h.Path != "" && (!strings.HasPrefix(h.Path, "/") || strings.Contains(h.Path, "//")) {
		r.errorAt(pos, "%s.path: want an absolute path in HDFS, such as /warehouse/access, not %q; the NameNodes are listed under namenodes", what, h.Path)
	}
	if pos, ok := found["user"]; ok && h.Kerberos != nil {
		r.errorAt(pos, "%s.user: with kerberos the user is that of the principal", what)
	}
	return h
}

// principalShape is NAME[/HOST]@REALM.
var principalShape = regexp.MustCompile(`^[^/@\s]+(/[^/@\s]+)?@[^/@\s]+$`)

func (r *yamlReader) kerberos(e entry, what string) *Kerberos {
	k := &Kerberos{Config: kerberosConfig}
	found := r.object(e.value, what,
		known{"principal", func(e entry) { k.Principal = r.text(e.value, what+".principal") }},
		known{"keytab", func(e entry) { k.Keytab = r.text(e.value, what+".keytab") }},
		known{"config", func(e entry) { k.Config = r.text(e.value, what+".config") }},
		known{"service", func(e entry) { k.Service = r.text(e.value, what+".service") }},
		known{"protection", func(e entry) {
			k.Protection = r.oneOf(e.value, what+".protection", "authentication", "integrity", "privacy")
		}},
	)
	r.require(found, e.pos, what, "principal", "keytab", "service")
	if pos, ok := found["principal"]; ok && k.Principal != "" && !principalShape.MatchString(k.Principal) {
		r.errorAt(pos, "%s.principal: want NAME@REALM or NAME/HOST@REALM, not %q", what, k.Principal)
	}
	if pos, ok := found["service"]; ok && k.Service != "" && (strings.Count(k.Service, "/") != 1 || strings.Contains(k.Service, "@")) {
		r.errorAt(pos, "%s.service: want SERVICE/HOST without a realm, such as nn/_HOST, not %q", what, k.Service)
	}
	return k
}

func (r *yamlReader) partitioning(e entry, what string) *Partitioning {
	p := &Partitioning{Zone: time.UTC, Lateness: latenessDefault, Late: LateKeep, PathsMax: pathsDefault}
	found := r.object(e.value, what,
		known{"path", func(e entry) { p.Path = r.pathTemplate(e, what+".path") }},
		known{"time", func(e entry) { p.Time = r.source(e.value, what+".time") }},
		known{"zone", func(e entry) { p.Zone = r.partitionZone(e.value, what+".zone") }},
		known{"lateness", func(e entry) { p.Lateness = r.duration(e.value, what+".lateness", 0, latenessHigh) }},
		known{"late", func(e entry) {
			p.Late = LatePolicy(r.oneOf(e.value, what+".late", string(LateKeep), string(LateToPath), string(LateDeadLetter)))
		}},
		known{"late_path", func(e entry) { p.LatePath = r.pathTemplate(e, what+".late_path") }},
		known{"success", func(e entry) { p.Success = r.boolean(e.value, what+".success") }},
		known{"paths_max", func(e entry) { p.PathsMax = int(r.integer(e.value, what+".paths_max", 1, pathsHigh)) }},
	)
	r.require(found, e.pos, what, "path")
	r.checkPartitioning(p, found, what)
	return p
}

// checkPartitioning checks the settings against each other.
func (r *yamlReader) checkPartitioning(p *Partitioning, found map[string]Pos, what string) {
	if p.Path != nil && p.Path.Unit == 0 {
		for _, key := range []string{"time", "zone", "lateness", "late", "success"} {
			if pos, ok := found[key]; ok {
				r.errorAt(pos, "%s.%s: the path has no times, such as dt=%%Y-%%m-%%d", what, key)
			}
		}
	}
	_, hasPath := found["late_path"]
	switch {
	case p.Late == LateToPath && !hasPath:
		r.errorAt(found["late"], "%s.late: path needs late_path, where late rows go", what)
	case p.Late != LateToPath && hasPath:
		r.errorAt(found["late_path"], "%s.late_path: only late: path uses it", what)
	}
	if p.LatePath != nil && p.Path != nil && p.LatePath.Text == p.Path.Text {
		r.errorAt(found["late_path"], "%s.late_path: is where rows go that are not late", what)
	}
}

// partitionZone is a zone that means the same wherever a worker runs.
func (r *yamlReader) partitionZone(n ast.Node, what string) *time.Location {
	name := r.zone(n, what)
	if name == zoneLocal {
		r.errorOn(n, "%s: workers on different machines would put the same row into different hours: want UTC or a name such as Europe/Berlin", what)
	}
	zone, err := time.LoadLocation(name)
	if err != nil { // said already
		return time.UTC
	}
	return zone
}

// ownerMode reads permission bits that let the owner read and write.
func (r *yamlReader) ownerMode(n ast.Node, what string) fs.FileMode {
	mode := fs.FileMode(r.fileMode(n, what))
	if mode&0o600 != 0o600 {
		r.errorOn(n, "%s: the owner has to read and write: want permissions such as 0640", what)
	}
	return mode
}
