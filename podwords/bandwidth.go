package podwords

import (
	"errors"
	"fmt"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/place"
)

// The bounds that Kubernetes has for its words, in bits per second
// (k8s.io/kubernetes/pkg/util/bandwidth).
const leastBits, mostBits = 1e3, 1e15

// kubernetesRows are words that a pod's network plugin follows, which Berth does not double:
// a pod with the host's network has none.
func kubernetesRows() []Row {
	row := func(word, means string, set func(*Wish, *int64)) Row {
		return Row{System: PlainKubernetes, Word: kubernetes + "/" + word, Means: means, read: func(r *reading, text string) (w Wish, err error) {
			bits, err := bandwidth(text)
			if err != nil || !r.pod.HostNetwork {
				return w, err
			}
			if err = r.holds(bits); err == nil {
				set(&w, bits)
			}
			return w, err
		}}
	}
	return []Row{
		row("egress-bandwidth", "the most that the pod may send, in bits per second, if it has the host's network", func(w *Wish, bits *int64) { w.Egress = bits }),
		row("ingress-bandwidth", "the most that the pod may receive, in bits per second, if it has the host's network", func(w *Wish, bits *int64) { w.Ingress = bits }),
	}
}

// bandwidth reads an amount.
func bandwidth(text string) (*int64, error) {
	var q place.Quantity
	if err := q.UnmarshalText([]byte(text)); err != nil {
		return nil, err
	}
	bits := q.Value()
	if bits < leastBits || bits > mostBits {
		return nil, errors.New("is not 1k to 1P bits per second")
	}
	return &bits, nil
}

// networkQOS reads what Koordinator has Terway do.
func networkQOS(r *reading, text string) (w Wish, err error) {
	var spec struct {
		strictyaml.Open
		Ingress string `json:"IngressLimit"`
		Egress  string `json:"EgressLimit"`
	}
	if _, err := strictyaml.Decode([]byte(text), "", &spec); err != nil {
		return w, errors.New(plain.Line(err.Error()))
	}
	for _, of := range []struct {
		field, text string
		into        **int64
	}{{"IngressLimit", spec.Ingress, &w.Ingress}, {"EgressLimit", spec.Egress, &w.Egress}} {
		if of.text == "" {
			continue
		}
		bits, err := bandwidth(of.text)
		if err == nil {
			err = r.holds(bits)
		}
		if _, lacks := errors.AsType[*Problem](err); lacks {
			return Wish{}, err
		} else if err != nil {
			return Wish{}, fmt.Errorf("%s %q: %w", of.field, plain.Line(of.text), err)
		}
		*of.into = bits
	}
	return w, nil
}

// holds is the problem of an amount to which no pod is held here, nil if it can be.
func (r *reading) holds(bits *int64) error {
	if r.opt.Bandwidth == nil {
		return notFollowed("what pods send and receive is not limited here")
	}
	if err := r.opt.Bandwidth(*bits); err != nil {
		return &Problem{Kind: NotFollowed, Err: err}
	}
	return nil
}
