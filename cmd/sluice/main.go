// Command sluice moves log lines from files on hosts into warehouses, exactly once, through a partitioned log that speaks
// the Kafka protocol. One binary holds every role; this package holds flags, signals and the wiring of roles, no logic.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes, for scripts.
const (
	exitFailure = 1 // the command ran and failed
	exitUsage   = 2 // the command line or a pipeline file is wrong
)

// version is set by the linker from the tag; without it the module's build information is shown.
var version string

// errUsage marks an error in what the user typed or wrote, as opposed to one of the world.
type errUsage struct{ error }

func (e errUsage) Unwrap() error { return e.error }

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The second signal ends the process at once: whoever presses Ctrl-C twice does not want to wait for a drain.
	context.AfterFunc(ctx, stop)
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "sluice:", err)
	// cobra has no type for a command that it does not know.
	if errors.As(err, &errUsage{}) || strings.HasPrefix(err.Error(), "unknown command") {
		return exitUsage
	}
	return exitFailure
}

// common holds the flags that every command has.
type common struct {
	logLevel  string
	logFormat string
}

func newRoot() *cobra.Command {
	c := &common{}
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Log lines from files on hosts into warehouses, exactly once",
		Long: "Sluice moves log lines from files on hosts into warehouses, exactly once, through a partitioned log that every\n" +
			"Kafka client can speak to. One binary holds every role: try `sluice run examples/quickstart/pipeline.yaml`.",
		Version:       versionText(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return errUsage{fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())}
	})
	root.PersistentFlags().StringVar(&c.logLevel, "log-level", "info", "lowest level that is logged: debug, info, warn, error")
	root.PersistentFlags().StringVar(&c.logFormat, "log-format", "text", "text or json, on standard error")
	root.AddCommand(newRun(c), newBroker(c), newAgent(c), newSink(c), newValidate(), newConvert(), newLag(), newGroups(c), newDLQ(c), newTable(c), newExplain(), newTopics(), newCluster(), newBench())
	return root
}

func (c *common) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.logLevel)); err != nil {
		return nil, errUsage{fmt.Errorf("--log-level %q: use debug, info, warn or error", c.logLevel)}
	}
	opts := &slog.HandlerOptions{Level: level}
	switch c.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, opts)), nil
	}
	return nil, errUsage{fmt.Errorf("--log-format %q: use text or json", c.logFormat)}
}

func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(development)"
	}
	return info.Main.Version
}

// splitAddrs reads a comma-separated list of host:port.
func splitAddrs(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// minArgs is cobra's check with an answer that says what is missing.
func minArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return errUsage{fmt.Errorf("%s is missing; see `%s --help`", what, cmd.CommandPath())}
		}
		return nil
	}
}

// exactArgs is cobra's check with an answer that says what is missing.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return errUsage{fmt.Errorf("%q is one word too many; see `%s --help`", args[n], cmd.CommandPath())}
		}
		return minArgs(n, what)(cmd, args)
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return errUsage{fmt.Errorf("%q is one word too many; see `%s --help`", args[0], cmd.CommandPath())}
	}
	return nil
}
