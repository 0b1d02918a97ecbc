package main

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

// watchFlags are the flags of commands that can go on showing.
func watchFlags(cmd *cobra.Command, watch *bool, interval *time.Duration) {
	cmd.Flags().BoolVar(watch, "watch", false, "show again and again, until interrupted")
	cmd.Flags().DurationVar(interval, "interval", time.Second, "`time` between two looks")
}

// refresh prints the text of show: once, or each interval until the end of the
// command's context. On a terminal each text takes the place of the last.
func refresh(cmd *cobra.Command, watch bool, interval time.Duration, show func() (string, error)) error {
	if interval < 10*time.Millisecond {
		return exitStatus{exitUsage, fmt.Errorf("--interval %s: at least 10ms", interval)}
	}
	out := cmd.OutOrStdout()
	for {
		text, err := show()
		if err != nil && cmd.Context().Err() == nil {
			return err
		}
		if watch && isTerminal(out) {
			text = "\x1b[H\x1b[J" + text // to the corner, and clear the rest
		}
		if err == nil {
			if _, err := io.WriteString(out, text); err != nil {
				return err
			}
		}
		if !watch {
			return err
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// jsonText is a value as JSON.
func jsonText(v any) (string, error) {
	var b bytes.Buffer
	err := writeJSON(&b, v)
	return b.String(), err
}
