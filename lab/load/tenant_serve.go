package load

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"time"
)

// stopWithin is how long requests under way may take when the service stops.
const stopWithin = 250 * time.Millisecond

// ServeTenant is the process of the service. It reads a ServiceConfig (one line of JSON), listens
// on a free port, prints a Target (one line of JSON), and serves
// until the input ends (the parent is gone) or ctx is done. Both are a normal
// end, and requests under way have a moment to be answered.
func ServeTenant(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	line, _ := lines.ReadBytes('\n') // an input that ends is no configuration
	var config ServiceConfig
	if err := decode(bytes.TrimSpace(line), &config); err != nil {
		return fmt.Errorf("tenant config: %w", err)
	}
	if config.Procs > 0 {
		runtime.GOMAXPROCS(config.Procs)
	}
	service, err := NewService(config)
	if err != nil {
		return err
	}
	if config.File != "" {
		debug.FreeOSMemory() // the copy that the file was made from
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(cmp.Or(config.Listen, "127.0.0.1"), "0"))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	// No timeouts: the load generator's connections may be idle for long.
	server := &http.Server{Handler: service}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err := json.NewEncoder(out).Encode(Target{Addr: listener.Addr().String(), Path: articlePath}); err != nil {
		return errors.Join(fmt.Errorf("print ready: %w", err), server.Close())
	}

	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, lines) // the end is all that matters, whatever caused it
	}()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-gone:
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer cancel()
	if err := server.Shutdown(limit); errors.Is(err, context.DeadlineExceeded) {
		return server.Close() // no client waits for what is still under way
	} else if err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}
