package daemon

import (
	"errors"
	"testing"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/place"
)

// While a release waits for a process that cannot be killed, workloads are listed and
// placed, and the guard acts and gives back.
func TestReleaseLeavesTheKeeperFree(t *testing.T) {
	t.Parallel()
	b := opened(t)
	ctx := t.Context()
	if err := b.k.Start("9000100"); err != nil {
		t.Fatal(err)
	}
	spec := exclusive("job", 1000)
	spec.PID = 9000100
	job, err := b.keeper.Place(ctx, spec)
	b.must(job, err)
	if err := b.k.Block("9000100"); err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() { released <- b.keeper.Release(ctx, "job", agent.Kill) }()
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			for {
				w, err := b.keeper.Get(ctx, "job")
				if err != nil || w.Releasing {
					break
				}
				time.Sleep(time.Millisecond)
			}
			other, err := b.keeper.Place(ctx, exclusive("other", 1000))
			if err == nil && other.Grant.Own.Overlaps(job.Grant.Own) {
				err = errors.New("two own " + job.Grant.Own.String())
			}
			_, listErr := b.keeper.List(ctx)
			_, applyErr := b.guard.host.Apply(ctx, yields)
			return errors.Join(err, listErr, applyErr, b.guard.restore())
		}()
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case err := <-released: // it has given up
		t.Fatalf("the others wait for the release: %v", err)
	}
	if err := b.k.Wake("9000100"); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Error(err)
	}
	var gone *place.NotHeldError
	if _, err := b.keeper.Get(ctx, "job"); !errors.As(err, &gone) {
		t.Errorf("job: %v", err)
	}
	if n := len(b.guard.host.Notes()); n != 0 {
		t.Errorf("%d active", n)
	}
}
