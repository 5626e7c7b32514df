-- Append an event to its job's streams and apply it to its state. With `redis.pcall` as `call`, a key of a wrong type is
-- passed over.
local function append_event(call, event, kept, events, lifecycle, state, totals)
  call('XADD', events, 'MAXLEN', '~', kept, '*', unpack(event.fields))
  if event.lifecycle then
    call('XADD', lifecycle, '*', unpack(event.fields))
  end
  if event.first then
    call('DEL', state) -- values of an earlier attempt
  end
  call('HSET', state, unpack(event.state))
  for name, amount in pairs(event.totals) do
    redis.pcall('HINCRBYFLOAT', totals, name, amount) -- a failing counter must not fail the job
  end
end
