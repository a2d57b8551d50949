package clickhouse

import (
	"context"
	"fmt"

	"github.com/sluice-io/sluice/pipelines"
)

// open opens a connection to the first of the sink's servers that can be reached.
func open(ctx context.Context, spec *pipelines.ClickHouse) (transport, string, error) {
	dial, err := newDialer(spec)
	if err != nil {
		return nil, "", err
	}
	for _, addr := range spec.Addr {
		var conn transport
		if conn, err = dial(ctx, addr); err == nil {
			return conn, addr, nil
		}
	}
	return nil, "", err
}

// CreateLike makes a table with the columns, the engine and the settings of the sink's own, unless it is there.
func CreateLike(ctx context.Context, spec *pipelines.ClickHouse, table string) error {
	conn, addr, err := open(ctx, spec)
	if err != nil {
		return err
	}
	defer conn.close()
	database := quoteName(spec.Database)
	statement := "CREATE TABLE IF NOT EXISTS " + database + "." + quoteName(table) + " AS " + database + "." + quoteName(spec.Table)
	if _, err := conn.query(ctx, statement, 0, nil); err != nil {
		return fmt.Errorf("%s: %s: %w", addr, statement, err)
	}
	return nil
}
