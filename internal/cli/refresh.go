package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// watchFlags are the flags of commands that can go on showing.
func watchFlags(cmd *cobra.Command, watch *bool, interval *time.Duration) {
	cmd.Flags().BoolVar(watch, "watch", false, "show again and again, until interrupted")
	cmd.Flags().DurationVar(interval, "interval", time.Second, "`time` between two looks")
}

// clearScreen goes to the corner of a terminal and clears the rest.
const clearScreen = "\x1b[H\x1b[J"

// refresh shows what look returns: once, or each interval until the end of the
// command's context. On a terminal each text takes the place of the last.
func refresh(cmd *cobra.Command, watch bool, interval time.Duration, look func() (value any, text func() string, err error)) error {
	if interval < 10*time.Millisecond {
		return exitStatus{exitUsage, fmt.Errorf("--interval %s: at least 10ms", interval)}
	}
	for {
		value, text, err := look()
		switch {
		case watch && cmd.Context().Err() != nil:
			return nil
		case err != nil:
			return err
		case watch && isTerminal(cmd.OutOrStdout()):
			fmt.Fprint(cmd.OutOrStdout(), clearScreen)
		}
		if err := show(cmd, value, text); err != nil || !watch {
			return err
		}
		wait(cmd.Context(), interval)
	}
}

// wait waits for a time, or the end of the context.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
