// Command chserver runs the ClickHouse server that chdb's shared library holds,
// in this process and without cgo. It is a part of the tests, not of Sluice.
//
//	CHDB_LIB_PATH=/path/libchdb.so chserver --config-file=F [ARGUMENT of clickhouse-local...]
//
// The library is made to run one query and end; the query given here opens the
// listeners and then sleeps, so the server runs until it is killed.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

const serveQuery = "SYSTEM START LISTEN TCP; SYSTEM START LISTEN HTTP; " +
	"SELECT sleepEachRow(1) FROM numbers(100000000) " +
	"SETTINGS function_sleep_max_microseconds_per_block=0, max_block_size=1, max_execution_time=0 FORMAT Null"

func main() {
	// The library keeps state per thread.
	runtime.LockOSThread()
	args := append([]string{"clickhouse-local"}, os.Args[1:]...)
	if err := serve(os.Getenv("CHDB_LIB_PATH"), append(args, "--query", serveQuery)); err != nil {
		fmt.Fprintln(os.Stderr, "chserver:", err)
		os.Exit(1)
	}
}

func serve(library string, args []string) error {
	lib, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return fmt.Errorf("load the library CHDB_LIB_PATH names: %w", err)
	}
	leaveSignalsToGo(lib)
	var cmdline func(argc int32, argv unsafe.Pointer) uintptr
	var resultError func(result uintptr) string
	purego.RegisterLibFunc(&cmdline, lib, "chdb_query_cmdline")
	purego.RegisterLibFunc(&resultError, lib, "chdb_result_error")

	var pin runtime.Pinner
	defer pin.Unpin()
	argv := cStrings(&pin, args)
	result := cmdline(int32(len(args)), unsafe.Pointer(argv))
	if result == 0 {
		return nil
	}
	if text := resultError(result); text != "" {
		return errors.New(text)
	}
	return nil
}

// leaveSignalsToGo keeps the library from replacing the Go runtime's handlers.
func leaveSignalsToGo(lib uintptr) {
	const name = "chdb_set_signal_handlers_enabled"
	if _, err := purego.Dlsym(lib, name); err != nil {
		return // a version without the switch
	}
	var enable func(int32)
	purego.RegisterLibFunc(&enable, lib, name)
	enable(0)
}

// cStrings lays args out as C's argv, with its closing null.
func cStrings(pin *runtime.Pinner, args []string) **byte {
	argv := make([]*byte, len(args)+1)
	for i, a := range args {
		z := append([]byte(a), 0)
		argv[i] = &z[0]
		pin.Pin(argv[i])
	}
	pin.Pin(&argv[0])
	return &argv[0]
}
