#include "daemon/keeper/unserved_segments.h"

#include <algorithm>
#include <set>
#include <utility>

#include "daemon/keeper/kept_record.h"

namespace tensorcast::daemon {

void UnservedSegments::Open(HostPool* pool, absl::flat_hash_map<std::string, uint64_t> outside,
                            std::vector<HostAllocation> room) {
  absl::MutexLock lock(&mutex_);
  pool_ = pool;
  outside_ = std::move(outside);
  room_ = std::move(room);
}

void UnservedSegments::Add(Attachment holder) {
  NoteUnserved(*keeper_, holder);
  absl::MutexLock lock(&mutex_);
  // After Stop nothing of the pool may be touched.
  if (pool_ == nullptr) return;
  for (size_t i = 0; i < pool_->segments().size(); ++i) {
    const std::string name = pool_->segment_name(i);
    const bool maps = std::ranges::find(holder.segments, name) != holder.segments.end();
    if (!maps || inside_.contains(name)) continue;
    // The whole segment is allocated, so that the pool gives nothing of it away.
    const uint64_t bytes = pool_->segments()[i].bytes;
    const std::vector<NamedExtent> whole = {
        {.image_offset = 0, .segment = name, .offset = 0, .bytes = bytes}};
    // Adopted replicas may lie in the segment, too: an adoption only counts references to its memory.
    absl::StatusOr<HostAllocation> memory = pool_->Adopt(bytes, whole);
    if (memory.ok()) inside_.emplace(name, *std::move(memory));
  }
  holders_.push_back(std::move(holder));
}

void UnservedSegments::DropEnded() {
  std::vector<Attachment> ended;
  std::vector<std::string> gone;
  std::vector<HostAllocation> memory;  // goes without the lock
  {
    absl::MutexLock lock(&mutex_);
    std::set<std::string> mapped;
    for (auto holder = holders_.begin(); holder != holders_.end();) {
      if (holder->ended()) {
        ended.push_back(std::move(*holder));
        holder = holders_.erase(holder);
        continue;
      }
      mapped.insert(holder->segments.begin(), holder->segments.end());
      ++holder;
    }
    // A segment that no process maps goes back to the pool, as does room that no segment outside needs.
    absl::erase_if(inside_, [&](auto& inside) {
      if (mapped.contains(inside.first)) return false;
      memory.push_back(std::move(inside.second));
      return true;
    });
    absl::erase_if(outside_, [&](const auto& outside) {
      if (mapped.contains(outside.first)) return false;
      gone.push_back(outside.first);
      return true;
    });
    // Room is given back in whole parts, as long as the rest still covers what is mapped outside of the pool.
    uint64_t room = 0;
    for (const HostAllocation& part : room_) room += part.bytes();
    while (!room_.empty() && OutsideBytes() <= room - room_.back().bytes()) {
      room -= room_.back().bytes();
      memory.push_back(std::move(room_.back()));
      room_.pop_back();
    }
  }
  // The lock is not held here, since each call may wait for the keeper's socket.
  for (const Attachment& holder : ended) DropAttachment(*keeper_, holder);
  for (const std::string& segment : gone) keeper_->Drop(SegmentName(segment));
}

void UnservedSegments::Stop() {
  absl::flat_hash_map<std::string, HostAllocation> inside;  // go without the lock
  std::vector<HostAllocation> room;
  absl::MutexLock lock(&mutex_);
  pool_ = nullptr;
  inside.swap(inside_);
  room.swap(room_);
}

UnservedSegments::Stats UnservedSegments::stats() const {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = OutsideBytes();
  for (const auto& [name, memory] : inside_) bytes += memory.bytes();
  return {.bytes = bytes, .holders = static_cast<uint32_t>(holders_.size())};
}

uint64_t UnservedSegments::OutsideBytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, size] : outside_) bytes += size;
  return bytes;
}

}  // namespace tensorcast::daemon
