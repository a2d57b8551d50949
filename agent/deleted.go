package agent

import (
	"slices"
)

// boundDeleted returns what removed files keep on disk because they are still read, and lets go of those removed longest ago when that is more
// than the setting allows: what is not read of them by then is gone, and counted.
func (r *files) boundDeleted() (deleted int64) {
	type removed struct {
		source *source
		size   int64
	}
	var all []removed
	for _, s := range r.sources {
		if !s.detached {
			continue
		}
		if info, err := r.reading.Looks.InfoOf(s.file.Handle()); err == nil && info.Links == 0 {
			deleted += info.Size
			all = append(all, removed{s, info.Size})
		}
	}
	limit := r.pipe.Collect.File.DeletedBytesMax
	if limit == 0 || deleted <= limit {
		return deleted
	}
	slices.SortFunc(all, func(a, b removed) int { return a.source.gone.Compare(b.source.gone) })
	for _, x := range all {
		if deleted <= limit {
			break
		}
		deleted -= x.size
		unread := max(x.size-x.source.file.Offset(), 0)
		if x.source.file.Compressed() {
			unread = x.source.file.Unread()
		}
		if unread > 0 {
			r.log.Warn("a removed file is let go unread: removed files keep more on disk than they may (collect.file.deleted_bytes_max)",
				"path", x.source.path, "unread_bytes", unread, "limit", limit)
		}
		r.count(func(a *Account) { a.AbandonedBytes += unread })
		r.letAlone(x.source)
	}
	return deleted
}

// letAlone ends the following of a source at once, wherever it is in turn.
func (r *files) letAlone(s *source) {
	r.queue = slices.DeleteFunc(r.queue, func(x *source) bool { return x == s })
	s.queued = false
	r.drop(s)
}
