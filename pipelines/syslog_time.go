package pipelines

import "time"

// syslogStamp reads a time at the beginning of b: Mmm dd hh:mm:ss, with a year behind the day or the time, with a fraction, or a time of
// RFC 3339. n is how long it is, 0 when there is none. What has no year is of the year that puts it nearest to ref; what has no zone is of
// loc.
func syslogStamp(b []byte, ref time.Time, loc *time.Location) (v Value, n int) {
	if v, n := stampRFC3339(b); n > 0 {
		return v, n
	}
	d, n := dateOf(b)
	if n == 0 {
		return Value{}, 0
	}
	if d.year == 0 && n+5 <= len(b) && b[n] == ' ' && isYear(b[n+1:n+5]) && (n+5 == len(b) || b[n+5] == ' ' || b[n+5] == ':') {
		d.year = int(decimal(b[n+1 : n+5]))
		n += 5
	}
	at, ok := d.in(ref, loc)
	if !ok {
		return Value{}, 0
	}
	return Time(at), n
}

// stampRFC3339 reads a word that is a time with a zone.
func stampRFC3339(b []byte) (Value, int) {
	if len(b) == 0 || b[0]-'0' > 9 {
		return Value{}, 0
	}
	n := 0
	for n < len(b) && b[n] != ' ' {
		n++
	}
	v, ok := parseTime(b[:n])
	if !ok && n > 0 && b[n-1] == ':' {
		n--
		v, ok = parseTime(b[:n])
	}
	if !ok {
		return Value{}, 0
	}
	return v, n
}

// date is a time as it was written.
type date struct {
	year              int // 0: not written
	month             time.Month
	day               int
	hour, minute, sec int
	nsec              int
}

// dateOf reads Mmm dd [yyyy] hh:mm:ss[.fraction].
func dateOf(b []byte) (d date, n int) {
	if len(b) < len("Jan  1 00:00:00") || b[3] != ' ' {
		return d, 0
	}
	month := nginxMonth(b[:3])
	if month == 0 {
		return d, 0
	}
	d.month = time.Month(month)
	at := 4
	if b[at] == ' ' {
		at++
	}
	digits := 0
	for at+digits < len(b) && b[at+digits]-'0' <= 9 {
		digits++
	}
	if digits < 1 || digits > 2 {
		return d, 0
	}
	d.day = int(decimal(b[at : at+digits]))
	at += digits
	if at+6 < len(b) && b[at] == ' ' && isYear(b[at+1:at+5]) && b[at+5] == ' ' {
		d.year = int(decimal(b[at+1 : at+5]))
		at += 5
	}
	const clock = " 00:00:00"
	if len(b) < at+len(clock) || b[at] != ' ' || !hasShape(b[at+1:], clock[1:]) {
		return d, 0
	}
	d.hour, d.minute, d.sec = int(decimal(b[at+1:at+3])), int(decimal(b[at+4:at+6])), int(decimal(b[at+7:at+9]))
	if d.hour > 23 || d.minute > 59 || d.sec > 59 {
		return d, 0
	}
	at += len(clock)
	if at+1 < len(b) && b[at] == '.' && b[at+1]-'0' <= 9 {
		nsec, rest := parseFraction(b[at:])
		d.nsec = int(nsec)
		at = len(b) - len(rest)
	}
	return d, at
}

func isYear(b []byte) bool {
	return hasShape(b, "0000") && (b[0] == '1' && b[1] == '9' || b[0] == '2' && b[1] == '0')
}

// in finds the instant. A year that was not written is the one that puts it nearest to ref, a local time that comes twice, when clocks
// are set back, the one of both that is nearer to ref, and one that never comes, when they are set forward, is read with the offset before.
func (d date) in(ref time.Time, loc *time.Location) (at time.Time, ok bool) {
	years, n := [3]int{d.year}, 1
	switch {
	case d.year != 0:
	case ref.IsZero():
		years[0] = syslogYearUnknown
	default:
		y := ref.In(loc).Year()
		years, n = [3]int{y, y - 1, y + 1}, 3
	}
	for _, y := range years[:n] {
		if int64(d.day) > daysIn(int64(y), int64(d.month)) || d.day < 1 {
			continue
		}
		first, second := d.instants(y, loc)
		for _, t := range [2]time.Time{first, second} {
			if !ok || t.Sub(ref).Abs() < at.Sub(ref).Abs() {
				at, ok = t, true
			}
		}
		if n > 1 && at.Sub(ref).Abs() < nearEnough {
			break
		}
	}
	return at, ok
}

// nearEnough is how near a time must be for no other year to be nearer.
const nearEnough = 180 * 24 * time.Hour

// instants are the one or two moments at which clocks in loc show the time; the same twice when there is one.
func (d date) instants(year int, loc *time.Location) (first, second time.Time) {
	utc := time.Date(year, d.month, d.day, d.hour, d.minute, d.sec, d.nsec, time.UTC)
	if loc == time.UTC {
		return utc, utc
	}
	_, before := utc.Add(-24 * time.Hour).In(loc).Zone()
	_, after := utc.Add(24 * time.Hour).In(loc).Zone()
	first = utc.Add(-time.Duration(before) * time.Second).In(loc)
	if after == before {
		return first, first
	}
	second = utc.Add(-time.Duration(after) * time.Second).In(loc)
	_, have := first.Zone()
	_, later := second.Zone()
	switch {
	case have == before && later == after:
		return first, second
	case later == after:
		return second, second
	}
	return first, first
}
