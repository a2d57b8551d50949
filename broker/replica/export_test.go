package replica

// What a broken build does that the simulation must notice; see sim_test.go.

// ForceHighWatermark sets a high watermark that nothing backs.
func (p *Partition) ForceHighWatermark(hw int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hw.Store(max(hw, p.hw.Load()))
}

// Alone says whether this node leads and is the only one in sync as it knows.
func (p *Partition) Alone() bool { return p.role.Load().alone }

// Leads says whether this node leads, and in which epoch, from which offset on.
func (p *Partition) Leads() (epoch int32, start int64, ok bool) {
	r := p.role.Load()
	return r.epoch, r.start, r.leader
}
