"""The scripts that run in the server: each looks at the checkpoint first, and changes nothing for a writer that was
replaced.

The server runs a script alone, from its begin to its end, and writes its effects to its log as one. An error in the
middle undoes nothing, so a script asks beforehand what could fail, and writes rows whole: the same script again heals
what a broken one left.
"""

from __future__ import annotations

from typing import NewType

Script = NewType("Script", str)

_FENCE = """
local held = redis.call('HMGET', KEYS[1], 'epoch', 'batch')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
  return redis.error_reply('FENCED the checkpoint is another one')
end
"""

_INDEXES = """
local function score_of(text)
  local y, m, d, clock = text:match('^(%d%d%d%d)-(%d%d)-(%d%d)(.*)$')
  if not y then
    return tonumber(text) and text
  end
  y, m, d = tonumber(y), tonumber(m), tonumber(d)
  if m == 0 or d == 0 then
    return false
  end
  if m <= 2 then y = y - 1 end
  local era = math.floor(y / 400)
  local year = y - era * 400
  local day = math.floor((153 * (m + (m > 2 and -3 or 9)) + 2) / 5) + d - 1
  local days = era * 146097 + year * 365 + math.floor(year / 4) - math.floor(year / 100) + day - 719468
  local h, i, s = clock:match('^ (%d%d):(%d%d):([%d.]+)$')
  return string.format('%.6f', days * 86400 + (h or 0) * 3600 + (i or 0) * 60 + (s or 0))
end

local function place_of(index, row)
  local name = ''
  for _, part in ipairs(index.parts) do
    if part.column then
      if not row[part.column] then return nil end
      name = name .. row[part.column]
    else
      name = name .. part.text
    end
  end
  local score = index.score and row[index.score] and score_of(row[index.score])
  if index.score and not score then return nil end
  return name, score
end

-- a key that another program gave another type is no row or index; any other error stops the script
local function typed(...)
  local found = redis.pcall(...)
  if type(found) ~= 'table' or not found.err then return found end
  if not found.err:find('WRONGTYPE', 1, true) then error(found.err, 0) end
end

local function indexed_row(spec, key)
  local found = typed('HMGET', key, unpack(spec.columns))
  if not found then return nil end
  local row = {}
  for number, name in ipairs(spec.columns) do row[name] = found[number] end
  return row
end

local function leave(spec, key)
  local row = indexed_row(spec, key)
  if not row then return end
  for _, index in ipairs(spec.indexes) do
    local name = place_of(index, row)
    if name then typed(index.score and 'ZREM' or 'SREM', name, key) end
  end
end

local function clash(spec, row)
  for _, index in ipairs(spec.indexes) do
    local name = place_of(index, row)
    local kind = name and redis.call('TYPE', name).ok
    if kind and kind ~= 'none' and kind ~= (index.score and 'zset' or 'set') then
      return 'the key ' .. index.key .. ' of an index holds a ' .. kind
    end
  end
end

local function enter(spec, key, row)
  for _, index in ipairs(spec.indexes) do
    local name, score = place_of(index, row)
    if name and index.score then
      redis.call('ZADD', name, score, key)
    elseif name then
      redis.call('SADD', name, key)
    end
  end
end
"""

PUT = Script(
    _FENCE
    + _INDEXES
    + """
-- ARGV: epoch, batch, indexes, then for each row: its number of words, its words
local spec = cjson.decode(ARGV[3])
local at, refused = 4, {}
for number = 2, #KEYS do
  local key, words = KEYS[number], tonumber(ARGV[at])
  local first, last = at + 1, at + words
  at = last + 1
  local row = {}
  for word = first, last, 2 do row[ARGV[word]] = ARGV[word + 1] end
  local wrong = clash(spec, row)
  if wrong then
    refused[#refused + 1] = { number - 2, wrong }
  else
    leave(spec, key)
    redis.call('DEL', key)
    for from = first, last, 4000 do
      redis.call('HSET', key, unpack(ARGV, from, math.min(from + 3999, last)))
    end
    enter(spec, key, row)
  end
end
return refused
"""
)
"""Writes rows of a table with indexes; returns (number, why) of those that it refused."""

REMOVE = Script(
    _FENCE
    + _INDEXES
    + """
-- ARGV: epoch, batch, indexes
local spec = cjson.decode(ARGV[3])
local gone = 0
for number = 2, #KEYS do
  leave(spec, KEYS[number])
  gone = gone + redis.call('DEL', KEYS[number])
end
return gone
"""
)
"""Removes rows of a table with indexes; returns how many were there."""

MOVE = Script(
    _FENCE
    + _INDEXES
    + """
-- KEYS: checkpoint, old keys, new keys
-- ARGV: epoch, batch, form, mark, its value, number of old keys, indexes or '', then the words of each new row as in PUT
if redis.call('HGET', KEYS[1], ARGV[4]) == ARGV[5] then return 0 end
local olds, spec = tonumber(ARGV[6]), ARGV[7] ~= '' and cjson.decode(ARGV[7])
for number = 2, olds + 1 do
  if spec then leave(spec, KEYS[number]) end
  redis.call('DEL', KEYS[number])
end
local at = 8
for number = olds + 2, #KEYS do
  local words = tonumber(ARGV[at])
  local first, last = at + 1, at + words
  at = last + 1
  redis.call('DEL', KEYS[number])
  if ARGV[3] ~= 'hash' then
    if words > 0 then redis.call('SET', KEYS[number], ARGV[first]) end
  else
    for from = first, last, 4000 do
      redis.call('HSET', KEYS[number], unpack(ARGV, from, math.min(from + 3999, last)))
    end
  end
end
redis.call('HSET', KEYS[1], ARGV[4], ARGV[5])
return 1
"""  # noqa: E501
)
"""Moves rows whose old values are only at the target to other keys, all of them at once, and once over all repeats."""

RENAME = Script(
    _FENCE
    + _INDEXES
    + """
-- KEYS: checkpoint, then old and new keys in turn; ARGV: epoch, batch, indexes of the old table or '', of the new one or ''
local was = ARGV[3] ~= '' and cjson.decode(ARGV[3])
local now = ARGV[4] ~= '' and cjson.decode(ARGV[4])
for number = 2, #KEYS, 2 do
  if redis.call('EXISTS', KEYS[number]) == 1 then
    if was then leave(was, KEYS[number]) end
    redis.call('RENAME', KEYS[number], KEYS[number + 1])
    local row = now and indexed_row(now, KEYS[number + 1])
    if row and not clash(now, row) then enter(now, KEYS[number + 1], row) end
  end
end
return 0
"""  # noqa: E501
)
"""Gives rows other keys."""

FIELDS = Script(
    _FENCE
    + """
-- KEYS: checkpoint, rows; ARGV: epoch, batch, {drops, renames, adds} as JSON, then the values of the fields that are added
local told = cjson.decode(ARGV[3])
for number = 2, #KEYS do
  if redis.call('TYPE', KEYS[number]).ok == 'hash' then
    for _, name in ipairs(told.drops) do redis.call('HDEL', KEYS[number], name) end
    for _, pair in ipairs(told.renames) do
      local value = redis.call('HGET', KEYS[number], pair[1])
      if value then
        redis.call('HSET', KEYS[number], pair[2], value)
        redis.call('HDEL', KEYS[number], pair[1])
      end
    end
    for place, name in ipairs(told.adds) do redis.call('HSET', KEYS[number], name, ARGV[3 + place]) end
  end
end
return 0
"""  # noqa: E501
)
"""Changes the fields of rows."""

REPLACE = Script(
    _FENCE
    + """
-- KEYS: checkpoint, rows; ARGV: epoch, batch, the new value of each
for number = 2, #KEYS do redis.call('SET', KEYS[number], ARGV[number + 1], 'XX', 'KEEPTTL') end
return 0
"""
)
"""Gives strings other values."""

NOTE = Script(
    _FENCE
    + """
-- KEYS: checkpoint, hash; ARGV: epoch, batch, then fields and values in turn; a value of '' removes the field
for word = 3, #ARGV, 2 do
  if ARGV[word + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[word])
  else
    redis.call('HSET', KEYS[2], ARGV[word], ARGV[word + 1])
  end
end
return 0
"""
)
"""Changes a record of Sluice's own."""

_LOST = """
local function entries_added(stream)
  local about = redis.call('XINFO', 'STREAM', stream)
  for at = 1, #about, 2 do
    if about[at] == 'entries-added' then return about[at + 1] end
  end
  return 0
end

local function why_lost(stream)
  local known = redis.call('HGET', KEYS[1], 'stream:' .. stream)
  if not known then return '' end
  if redis.call('EXISTS', stream) == 0 then
    return 'is gone, and with it what the target wrote to it'
  end
  if entries_added(stream) < tonumber(known) then
    return 'was deleted and made anew, so that it lacks what was sent before'
  end
  return ''
end
"""
"""The checkpoint notes how many entries a stream had ever got; a server before Redis 7 does not count them."""

LOST = Script(_LOST + "return why_lost(KEYS[2])")
"""Returns why a stream lacks what the target wrote to it, '' if it has it. KEYS: checkpoint, stream."""

APPEND = Script(
    _FENCE
    + _LOST
    + """
-- KEYS: checkpoint, streams; ARGV: epoch, batch, field of the progress, what is sent, number of the first entry, entries, length or '',
-- then for each entry: number of its stream, number of its words, its words
local known = redis.call('HGET', KEYS[1], ARGV[3])
local sent, first, count = 0, tonumber(ARGV[5]), tonumber(ARGV[6])
if known then
  local number, what = known:match('^(%d+) (.*)$')
  if what == ARGV[4] then sent = tonumber(number) end
end
if sent < first then
  return redis.error_reply('ERR entry ' .. first .. ' was to follow, and ' .. sent .. ' are there')
end
for number = 2, #KEYS do
  local kind = redis.call('TYPE', KEYS[number]).ok
  if kind ~= 'none' and kind ~= 'stream' then
    return redis.error_reply('WRONGTYPE the key ' .. KEYS[number] .. ' is no stream, but a ' .. kind)
  end
  local why = why_lost(KEYS[number])
  if why ~= '' then return redis.error_reply('LOST the stream ' .. KEYS[number] .. ' ' .. why) end
end
local at, added = 8, 0
for entry = first, first + count - 1 do
  local stream, words = KEYS[1 + tonumber(ARGV[at])], tonumber(ARGV[at + 1])
  if entry >= sent then
    if ARGV[7] ~= '' then
      redis.call('XADD', stream, 'MAXLEN', '~', ARGV[7], '*', unpack(ARGV, at + 2, at + 1 + words))
    else
      redis.call('XADD', stream, '*', unpack(ARGV, at + 2, at + 1 + words))
    end
    added = added + 1
  end
  at = at + 2 + words
end
for number = 2, #KEYS do
  redis.call('HSET', KEYS[1], 'stream:' .. KEYS[number], entries_added(KEYS[number]))
end
redis.call('HSET', KEYS[1], ARGV[3], math.max(sent, first + count) .. ' ' .. ARGV[4])
return added
"""  # noqa: E501
)
"""Appends to streams what is not there yet; returns how many entries that were."""

SWAP = Script("""
-- ARGV: number of the words that are expected, they, number of the new words, they, fields that go
local held, expected, values = redis.call('HGETALL', KEYS[1]), tonumber(ARGV[1]), {}
if #held ~= expected then return 0 end
for number = 1, expected, 2 do values[held[number]] = held[number + 1] end
for number = 2, expected, 2 do
  if values[ARGV[number]] ~= ARGV[number + 1] then return 0 end
end
local first = expected + 3
local last = expected + 2 + tonumber(ARGV[expected + 2])
redis.call('HSET', KEYS[1], unpack(ARGV, first, last))
for number = last + 1, #ARGV do redis.call('HDEL', KEYS[1], ARGV[number]) end
return 1
""")
"""Changes the checkpoint, unless it changed meanwhile."""

NAMES = {
    PUT: "that writes rows", REMOVE: "that removes rows", MOVE: "that moves rows", RENAME: "that renames rows",
    FIELDS: "that changes fields",
    REPLACE: "that replaces rows", LOST: "that looks for a stream",
    NOTE: "that keeps a note", APPEND: "that appends to streams", SWAP: "that changes the checkpoint",
}  # fmt: skip
