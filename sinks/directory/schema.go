package directory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// columnType is the type of a Parquet column.
type columnType string

const (
	typeUnknown columnType = "" // nothing but nulls so far
	typeBool    columnType = "bool"
	typeInt     columnType = "int64"
	typeFloat   columnType = "double"
	typeString  columnType = "string"
	typeTime    columnType = "timestamp"
	typeJSON    columnType = "json"
)

// typeOf is the type of a column that holds values of a kind.
func typeOf(k pipelines.Kind) columnType {
	switch k {
	case pipelines.KindBool:
		return typeBool
	case pipelines.KindInt:
		return typeInt
	case pipelines.KindFloat:
		return typeFloat
	case pipelines.KindUint, pipelines.KindString:
		return typeString
	case pipelines.KindTime:
		return typeTime
	case pipelines.KindList, pipelines.KindMap:
		return typeJSON
	default:
		return typeUnknown
	}
}

// join is the type that holds the values of both.
func join(a, b columnType) columnType {
	switch {
	case a == b, b == typeUnknown:
		return a
	case a == typeUnknown:
		return b
	case a == typeInt && b == typeFloat, a == typeFloat && b == typeInt:
		return typeFloat
	default:
		return typeString
	}
}

// column is one column of the directory's Parquet files.
type column struct {
	Name string     `json:"name"`
	Type columnType `json:"type"`
}

// schema is a version of the directory's columns. Never changed once made.
type schema struct {
	version int
	columns []column
	index   map[string]int
}

func newSchema(version int, columns []column) *schema {
	s := &schema{version: version, columns: columns, index: make(map[string]int, len(columns))}
	for i, c := range columns {
		s.index[c.Name] = i
	}
	return s
}

func (s *schema) typeOf(name string) columnType {
	if i, ok := s.index[name]; ok {
		return s.columns[i].Type
	}
	return typeUnknown
}

// with is the next version, with more columns.
func (s *schema) with(added []column) *schema {
	columns := append(s.columns[:len(s.columns):len(s.columns)], added...)
	return newSchema(s.version+1, columns)
}

// schemaFile is the content of a _schema file.
type schemaFile struct {
	Columns []column `json:"columns"`
}

// A version is a directory that holds one file, so that of two processes which make the same one alone succeeds. Earlier versions of this program made a file.
const schemaFileName = "columns.json"

func schemaName(version int) string { return fmt.Sprintf("_schema-%06d", version) }

// loadSchema reads the newest version; version 0, without columns, when there is none.
func loadSchema(dir FS) (*schema, error) {
	entries, err := dir.List("")
	if err != nil {
		return nil, err
	}
	newest, file := 0, ""
	for _, e := range entries {
		var version int
		if _, err := fmt.Sscanf(e.Name, "_schema-%06d", &version); err != nil || version <= newest {
			continue
		}
		switch e.Name {
		case schemaName(version):
			newest, file = version, path.Join(e.Name, schemaFileName)
		case schemaName(version) + ".json":
			newest, file = version, e.Name
		}
	}
	if newest == 0 {
		return newSchema(0, nil), nil
	}
	return readSchema(dir, newest, file)
}

func readSchema(dir FS, version int, name string) (*schema, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	var content schemaFile
	if err := json.Unmarshal(text, &content); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	for _, c := range content.Columns {
		switch c.Type {
		case typeBool, typeInt, typeFloat, typeString, typeTime, typeJSON:
		default:
			return nil, fmt.Errorf("read %s: column %s has the unknown type %q", name, c.Name, c.Type)
		}
	}
	return newSchema(version, content.Columns), nil
}

// addColumns publishes a version of the schema with more columns and returns it. When another process was first, the sink takes that one's version
// over and asks for the block to be made again.
func (s *Sink) addColumns(from *schema, added []column) (*schema, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.schema != from {
		return nil, sinks.ErrSchemaChanged
	}
	next := from.with(added)
	err := s.publishSchema(next)
	if errors.Is(err, fs.ErrExist) {
		if next, err = loadSchema(s.fs); err != nil {
			return nil, err
		}
		s.schema = next
		return nil, sinks.ErrSchemaChanged
	}
	if err != nil {
		return nil, fmt.Errorf("add columns: %w", err)
	}
	s.schema = next
	s.log.Info("columns added to the directory's schema", "version", next.version, "columns", added)
	return next, nil
}

// publishSchema writes a version's file. The caller holds s.mu.
func (s *Sink) publishSchema(next *schema) error {
	text, err := json.MarshalIndent(schemaFile{Columns: next.columns}, "", "  ")
	if err != nil {
		return err
	}
	final := schemaName(next.version)
	temporary := s.temporaryName(final)
	err = writeWhole(s.fs, path.Join(temporary, schemaFileName), append(text, '\n'))
	if err == nil {
		err = s.fs.Rename(temporary, final)
	}
	if err != nil {
		return errors.Join(err, removeIfThere(s.fs, temporary))
	}
	return nil
}
