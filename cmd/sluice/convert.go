package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/internal/convert"
	"github.com/sluice-io/sluice/pipelines"
)

// configBytesMax bounds a configuration that is converted.
const configBytesMax = 4 << 20

func newConvert() *cobra.Command {
	cmd := &cobra.Command{Use: "convert", Short: "Make pipelines of the configuration of another log shipper"}
	for _, x := range []struct {
		name, of string
		convert  func([]byte) (*convert.Result, error)
	}{
		{"promtail", "Promtail", convert.Promtail},
		{"filebeat", "Filebeat", convert.Filebeat},
		{"fluent-bit", "Fluent Bit", convert.FluentBit},
	} {
		cmd.AddCommand(&cobra.Command{
			Use: x.name + " FILE", Short: "Make pipelines of the configuration of " + x.of,
			Long: "Writes pipelines to standard output, and to standard error what could not be carried over, each with its line. The pipelines are valid;\n" +
				"see whether they are what you want, and add sinks.",
			Args: exactArgs(1, "a configuration file"),
			RunE: func(cmd *cobra.Command, args []string) error { return convertFile(cmd, args[0], x.convert) },
		})
	}
	return cmd
}

func convertFile(cmd *cobra.Command, file string, convert func([]byte) (*convert.Result, error)) error {
	info, err := os.Stat(file)
	if err != nil {
		return errUsage{err}
	}
	if info.Size() > configBytesMax {
		return errUsage{fmt.Errorf("%s has %d bytes; at most %d are read", file, info.Size(), configBytesMax)}
	}
	src, err := os.ReadFile(file)
	if err != nil {
		return errUsage{err}
	}
	r, err := convert(src)
	if err != nil {
		return errUsage{fmt.Errorf("%s: %w", file, err)}
	}
	for _, n := range r.Notes {
		at := file
		if n.Line > 0 {
			at = fmt.Sprintf("%s:%d", file, n.Line)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", at, n.What)
	}
	if r.Count == 0 {
		return errors.New("there is no input in it that could be made a pipeline")
	}
	fmt.Fprint(cmd.OutOrStdout(), r.YAML)
	if _, err := pipelines.Parse("the output", []byte(r.YAML)); err != nil {
		return fmt.Errorf("what was written needs your hand before it is valid: %w", err)
	}
	return nil
}
