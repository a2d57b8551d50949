package group

// list appends every group.
func (m *machine) list(all []Listing) []Listing {
	for _, id := range m.groupIDs() {
		if g := m.groups[id]; g.state != dead {
			all = append(all, g.listing())
		}
	}
	return all
}

func (g *group) listing() Listing {
	l := Listing{Group: g.id, Type: ClassicType, ProtocolType: g.protocolType, State: g.stateName()}
	if g.consumer != nil {
		l.Type, l.ProtocolType = ConsumerType, consumerProtocol
	}
	return l
}

func (m *machine) describe(id string) (Description, error) {
	g := m.groups[id]
	if g == nil || g.state == dead || g.consumer != nil {
		return Description{Group: id, State: dead.String()}, ErrGroupNotFound
	}
	d := Description{Group: id, State: g.state.String(), ProtocolType: g.protocolType}
	if g.state == stable {
		d.Protocol = g.protocol
	}
	for _, mem := range g.members {
		md := MemberDescription{ID: mem.id, InstanceID: mem.instanceID, ClientID: mem.clientID, ClientHost: mem.clientHost}
		if g.state == stable {
			md.Metadata, md.Assignment = mem.metadata(g.protocol), mem.assignment
		}
		d.Members = append(d.Members, md)
	}
	return d, nil
}

// views appends every group with its offsets.
func (m *machine) views(all []View) []View {
	for _, id := range m.groupIDs() {
		g := m.groups[id]
		v := View{Group: id, State: g.stateName(), Members: len(g.members), Offsets: allOffsets(g.offsets)}
		if g.consumer != nil {
			v.Members = len(g.consumer.members)
		}
		all = append(all, v)
	}
	return all
}
