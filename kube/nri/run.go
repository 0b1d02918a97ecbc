package nri

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"berth.dev/berth/agent"
)

// Socket is where containerd and CRI-O listen for plugins.
const Socket = api.DefaultSocketPath

// The wait between two attempts to connect.
const (
	firstWait   = 100 * time.Millisecond
	longestWait = 10 * time.Second
)

// Run connects to the runtime that dial reaches, and again whenever the connection is lost,
// until ctx ends. Containers keep what they have meanwhile.
func (p *Plugin) Run(ctx context.Context, dial func() (net.Conn, error)) error {
	var beside sync.WaitGroup
	beside.Go(func() { p.scale(ctx) })
	beside.Go(func() { p.repairLoop(ctx) })
	defer beside.Wait()
	wait := firstWait
	for ctx.Err() == nil {
		began := time.Now()
		err := p.connect(ctx, dial)
		if time.Since(began) > longestWait {
			wait = firstWait
		}
		if ctx.Err() != nil {
			break
		}
		text := "the runtime closed the connection"
		if err != nil {
			text = err.Error()
		}
		p.emit(Event{Kind: Lost, Text: text + "; trying again in " + wait.String()})
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, longestWait)
	}
	return ctx.Err()
}

// scale has the clocks of pools follow their load until ctx ends, whether the runtime is there or
// not, and gives them back then, as nobody measures the load any more. An error is told when it
// is another one.
func (p *Plugin) scale(ctx context.Context) {
	if !p.classes.Power.Scales() {
		return
	}
	told := ""
	tell := func(err error) {
		text := ""
		if err != nil {
			text = err.Error()
		}
		if told != text && text != "" {
			p.emit(Event{Kind: string(agent.Failed), Text: text})
		}
		told = text
	}
	every := time.NewTicker(p.opt.Scale)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			tell(p.node.StopScaling(context.WithoutCancel(ctx)))
			return
		case <-every.C:
			if err := p.node.Scale(ctx); ctx.Err() == nil {
				tell(err)
			}
		}
	}
}

// connect is one connection, from beginning to end.
func (p *Plugin) connect(ctx context.Context, dial func() (net.Conn, error)) error {
	conn, err := dial()
	if err != nil {
		return err
	}
	closed := make(chan struct{})
	var once sync.Once
	s, err := stub.New(p, stub.WithPluginName(p.opt.Name), stub.WithPluginIdx(p.opt.Index), stub.WithConnection(conn),
		stub.WithLogger(quiet{}), stub.WithOnClose(func() { once.Do(func() { close(closed) }) }))
	if err != nil {
		conn.Close()
		return err
	}
	if err := start(ctx, s); err != nil {
		conn.Close()
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	kept := make(chan struct{})
	go func() { defer close(kept); p.sendLoop(ctx, s) }()
	p.connected.Store(true)
	defer p.connected.Store(false)
	select {
	case <-closed:
	case <-ctx.Done():
		s.Stop()
	}
	cancel()
	<-kept
	return nil
}

// start registers with the runtime. The stub waits for ever for one that does not answer.
func start(ctx context.Context, s stub.Stub) error {
	started := make(chan error, 1)
	go func() { started <- s.Start(context.WithoutCancel(ctx)) }()
	select {
	case err := <-started:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(2 * stub.DefaultRegistrationTimeout):
		return errors.New("the runtime does not answer")
	}
}

// quiet is a logger of the stub that says nothing: the plugin tells what matters as events.
type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}
