package api

import (
	"errors"
	"fmt"
	"testing"

	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

func TestKindOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		want string
	}{
		{&place.CPUsError{}, "not-enough-cpus"},
		{fmt.Errorf("place: %w", &place.SMTError{}), "smt-alignment"},
		{errors.Join(errors.New("x"), &place.FloorError{}), "floor"},
		{&kernel.StepError{Err: errors.New("x")}, "kernel"},
		{&kernel.NotSupportedError{}, "not-supported"},
		{errors.New("x"), "internal"},
		{nil, "internal"},
	} {
		if got := KindOf(tc.err); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.err, got, tc.want)
		}
	}
}
