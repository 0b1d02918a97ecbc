package place

// queue is a binary heap of ranked units, the best one first.
type queue []ranked

type ranked struct {
	rank     Rank
	tie, pos int
}

func (q queue) init() {
	for i := len(q)/2 - 1; i >= 0; i-- {
		q.sink(i)
	}
}

// rest returns the queue without its first, in the same memory.
func (q queue) rest() queue {
	last := len(q) - 1
	q[0] = q[last]
	q = q[:last]
	q.sink(0)
	return q
}

// sink moves a unit behind all better ones below it.
func (q queue) sink(i int) {
	for {
		best := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(q); child++ {
			if q.before(child, best) {
				best = child
			}
		}
		if best == i {
			return
		}
		q[i], q[best] = q[best], q[i]
		i = best
	}
}

func (q queue) before(i, j int) bool {
	order := q[i].rank.Compare(&q[j].rank)
	return order < 0 || order == 0 && q[i].tie < q[j].tie
}
