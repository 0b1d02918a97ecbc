package replay

import (
	"fmt"

	"berth.dev/berth/place"
	"berth.dev/berth/podwords"
)

// annotations reads the words of a pod for one of its containers. A scenario is no node:
// every word counts, and what a policy does not follow is left to it.
func (p *objectReader) annotations(meta *metaFile, container string, w *workloadFile) {
	pod := podwords.Pod{Namespace: meta.Namespace, Name: meta.Name, Labels: meta.Labels, Annotations: meta.Annotations}
	r := podwords.Read(&pod, container, podwords.Options{
		Rules: podwords.Everything(),
		ID:    func(pod *podwords.Pod, container string) string { return podID(meta) + "/" + container },
	})
	w.Words = workloadFile{Words: w.Words}.overlay(&workloadFile{Words: r.Wish.Words}).Words
	if own, milli := r.Wish.Own, int(value(w.CPUs)); own != nil && *own*1000 > milli {
		p.at("annotations", fmt.Errorf("berth.dev/cpus: %d CPUs of its own, and it requests %d thousandths of one", *own, milli))
	} else if own != nil {
		mode, shared := podwords.OwnPart(*own, milli)
		w.Mode, w.Shared = &mode, new(place.Milli(shared))
	}
	for i := range r.Problems {
		word := &r.Problems[i]
		at := "annotations."
		if _, label := meta.Labels[word.Word]; label {
			at = "labels."
		}
		switch word.Kind {
		case podwords.NotFollowed:
			p.unread = append(p.unread, word.Word)
		case podwords.Contradiction: // the stronger system's word holds
		default:
			p.at(at+word.Word, word.Err)
		}
	}
}
