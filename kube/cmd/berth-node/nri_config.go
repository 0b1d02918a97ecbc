package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kube/nri"
	"berth.dev/berth/podwords"
)

// effective is the configuration of the file, with the flags over it.
func (f *nriFlags) effective(cmd *cobra.Command) (c *config.NodeConfig, err error) {
	c = config.Default()
	if f.config != "" {
		if c, err = daemon.ReadTrustedConfig(f.config); err != nil {
			return nil, err
		}
	}
	k := &c.Kubernetes
	k.NRISocket = cmp.Or(k.NRISocket, nri.Socket)
	for name, set := range map[string]func(){
		"nri-socket": func() { k.NRISocket = f.socket }, "state": func() { c.Agent.StateDir = f.state },
		"policy": func() { c.Policy = config.Policy{Name: f.policy} }, "index": func() { k.Index = f.index },
		"budget": func() { k.Budget = config.Duration(f.budget) }, "strict": func() { k.Strict = f.strict },
	} {
		if cmd.Flags().Changed(name) {
			set()
		}
	}
	if cmd.Flags().Changed("reserved-cpus") {
		if c.Reserved, err = cpuset.Parse(f.reserved); err != nil {
			return nil, fmt.Errorf("--reserved-cpus: %w", err)
		}
	}
	if f.rules != "" {
		if k.Words, err = readRules(f.rules); err != nil {
			return nil, err
		}
	}
	if err := f.watch.over(cmd, c); err != nil {
		return nil, err
	}
	return c, c.Validate()
}

func readRules(file string) (rules []config.WordRule, err error) {
	text, err := os.ReadFile(file)
	if err == nil {
		_, err = strictyaml.Decode(text, file, &rules)
	}
	return rules, err
}

// printConfig writes a configuration as JSON, which is YAML.
func printConfig(cmd *cobra.Command, c *config.NodeConfig) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err == nil {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text)
	}
	return err
}

// options are the plugin's, of a configuration.
func options(root *kernel.Root, c *config.NodeConfig) (opt nri.Options, err error) {
	k := &c.Kubernetes
	if opt.Node, err = daemon.NodeOptions(agent.Options{Root: root, Dir: daemon.StateDir(c)}, c); err != nil {
		return opt, err
	}
	opt.Confine, opt.Protected, opt.Within = opt.Node.Confine, opt.Node.Protected, opt.Node.Within
	opt.Index, opt.Budget, opt.Idle, opt.CacheAfterStart = k.Index, time.Duration(k.Budget), k.Idle, k.CacheAfterStart
	opt.Words = nri.Words{
		Hints: policyHints(c.Policy.Name), Strict: k.Strict, PodScope: k.PodScope,
	}
	for _, r := range k.Words {
		opt.Words.Rules = append(opt.Words.Rules, podwords.Rule(r))
	}
	return opt, opt.Words.Rules.Validate()
}

// run keeps a plugin running until a signal comes, each time with what the configuration says
// by then.
func (f *nriFlags) run(cmd *cobra.Command, root *kernel.Root, c *config.NodeConfig) error {
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	ctx := cmd.Context()
	changed := make(chan struct{}, 1)
	if f.config != "" {
		again := make(chan os.Signal, 1)
		signal.Notify(again, syscall.SIGHUP)
		defer signal.Stop(again)
		go func() {
			err := daemon.Follow(ctx, f.config, again, func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			})
			if err != nil {
				log.Error("failed", "text", plain.Line(err.Error()))
			}
		}()
	}
	var former *config.NodeConfig // that worked
	for {
		in, err := f.open(ctx, root, c, log)
		if err != nil {
			if former == nil || ctx.Err() != nil {
				return err
			}
			log.Error("kept", "text", plain.Line("the configuration stays as it was: "+err.Error()))
			c, former = former, nil
			continue
		}
		held, next, err := f.serve(ctx, cmd, root, c, in, changed, log)
		if err = errors.Join(err, in.plugin.Close()); err != nil || next == nil {
			return err
		}
		former, c = held, next
	}
}

// serve runs a plugin until a signal comes or the configuration changes in what takes another
// plugin: then it returns that one as its second result, else nil. held is what was in force at the
// end, which is not c where words have changed since.
func (f *nriFlags) serve(ctx context.Context, cmd *cobra.Command, root *kernel.Root, c *config.NodeConfig, in *instance, changed <-chan struct{}, log *slog.Logger) (held, _ *config.NodeConfig, err error) {
	held = c
	running, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	var ended error
	go func() {
		defer close(done)
		ended = in.run(running, c.Kubernetes.NRISocket)
	}()
	defer func() { stop(); <-done; err = errors.Join(err, ended) }()
	for {
		select {
		case <-done:
			return held, nil, nil
		case <-changed:
		}
		next, err := f.effective(cmd)
		var changes []config.Change
		if err == nil {
			changes, err = config.Diff(held, next)
		}
		var opt nri.Options
		if err == nil {
			opt, err = options(root, next)
		}
		switch {
		case err != nil:
			log.Error("kept", "text", plain.Line("the configuration stays as it was: "+err.Error()))
			continue
		case len(changes) == 0:
			continue
		}
		var words []string
		for _, change := range changes {
			words = append(words, change.String())
		}
		anew := slices.ContainsFunc(changes, func(c config.Change) bool { return !isWords(c.Field) })
		if !anew {
			if err := in.plugin.SetWords(opt.Words); err != nil {
				return held, nil, err
			}
			held = next
		}
		log.Info("reloaded", "text", plain.Line(strings.Join(words, "; ")))
		if anew {
			return held, next, nil
		}
	}
}

// isWords reports whether a setting is about how pods are read, and no more.
func isWords(field string) bool {
	return slices.ContainsFunc([]string{"strict", "podScope", "words"}, func(name string) bool {
		return field == "kubernetes."+name || strings.HasPrefix(field, "kubernetes."+name+".") || strings.HasPrefix(field, "kubernetes."+name+"[")
	})
}
