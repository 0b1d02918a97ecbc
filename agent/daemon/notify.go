package daemon

import (
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Supervisor is the service manager that wants to know how this process is
// (sd_notify(3)). The zero value stands for no supervisor.
type Supervisor struct {
	// Socket is $NOTIFY_SOCKET; one that starts with '@' is abstract.
	Socket string
	// Watchdog is $WATCHDOG_USEC: it is told that all is well twice within this
	// time; 0 is never.
	Watchdog time.Duration
}

// tell sends lines of NAME=VALUE. That nobody takes them is no reason to stop.
func (s Supervisor) tell(lines ...string) error {
	if s.Socket == "" {
		return nil
	}
	c, err := net.Dial("unixgram", s.Socket)
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}

// monotonic is CLOCK_MONOTONIC in microseconds, for MONOTONIC_USEC=.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return t.Nano() / 1000
}
