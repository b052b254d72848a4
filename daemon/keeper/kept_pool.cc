#include "daemon/keeper/kept_pool.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/ids.h"
#include "base/status.h"

namespace tensorcast::daemon {
namespace {

// With the version of what is in them.
constexpr std::string_view kSegmentPrefix = "segment1/";
constexpr std::string_view kReplicaPrefix = "replica1/";
// Of a manifest, generously; whoever writes there is this daemon's user.
constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 30;

constexpr std::string_view kHolderPrefix = "holder1/";
constexpr std::string_view kGpuPrefix = "gpu1/";

std::string SegmentName(std::string_view name) { return absl::StrCat(kSegmentPrefix, name); }
std::string ReplicaName(std::string_view artifact_id) { return absl::StrCat(kReplicaPrefix, artifact_id); }

// "holder1/PID/ARTIFACT-ID/UUID"
std::string HolderName(pid_t pid, std::string_view artifact_id) {
  return absl::StrCat(kHolderPrefix, pid, "/", artifact_id, "/", NewUuid());
}

// Of a pidfd.
bool HasEnded(int process) {
  pollfd poller{process, POLLIN, 0};
  return poll(&poller, 1, 0) != 0;
}

uint64_t FileBytes(int fd) {
  struct stat file{};
  return fstat(fd, &file) == 0 ? static_cast<uint64_t>(file.st_size) : 0;
}

absl::StatusOr<UniqueFd> WriteRecord(std::string_view bytes) {
  UniqueFd fd(memfd_create("tensorcast-kept-replica", MFD_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, "memfd_create for", "a kept record");
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = write(fd.get(), bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoStatus(errno, "writing", "a kept record");
    done += static_cast<size_t>(written);
  }
  return fd;
}

absl::StatusOr<std::string> ReadRecord(int fd) {
  const uint64_t size = FileBytes(fd);
  if (size > kMaxRecordBytes) return absl::InvalidArgumentError("a kept record that is too large");
  std::string bytes(size, '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t read = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return ErrnoStatus(errno, "reading", "a kept record");
    done += static_cast<size_t>(read);
  }
  return bytes;
}

absl::StatusOr<UniqueFd> Duplicate(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return ErrnoStatus(errno, "keep", "a segment of the host pool");
  return copy;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KeptPool>> KeptPool::Open(const std::string& socket,
                                                         std::vector<std::string> argv) {
  std::unique_ptr<KeptPool> pool(new KeptPool(socket, std::move(argv)));
  TC_ASSIGN_OR_RETURN(std::vector<KeptDescriptor> all, pool->keeper_.Open());
  for (KeptDescriptor& kept : all) pool->Add(std::move(kept));
  return pool;
}

// What has none of these names is of another version.
void KeptPool::Add(KeptDescriptor kept) {
  names_.push_back(kept.name);
  std::string_view name = kept.name;
  if (absl::ConsumePrefix(&name, kSegmentPrefix)) {
    segments_.push_back({std::string(name), std::move(kept.fd)});
  } else if (absl::ConsumePrefix(&name, kReplicaPrefix)) {
    AddReplica(name, kept.fd.get());
  } else if (absl::ConsumePrefix(&name, kHolderPrefix)) {
    const std::vector<std::string> parts = absl::StrSplit(name, '/');
    if (parts.size() != 3 || HasEnded(kept.fd.get())) return;
    absl::MutexLock lock(&mutex_);
    held_[parts[1]].holders.push_back({kept.name, std::move(kept.fd)});
  } else if (absl::ConsumePrefix(&name, kGpuPrefix)) {
    absl::MutexLock lock(&mutex_);
    ++stats_.gone_on_gpus;
  }
}

void KeptPool::AddReplica(std::string_view name, int record_file) {
  const auto read = [&]() -> absl::Status {
    TC_ASSIGN_OR_RETURN(const std::string bytes, ReadRecord(record_file));
    TC_ASSIGN_OR_RETURN(KeptRecord record, DecodeRecord(bytes));
    TC_ASSIGN_OR_RETURN(std::shared_ptr<const Manifest> manifest, Manifest::Decode(record.manifest));
    if (manifest->id() != name) return absl::InvalidArgumentError("a kept record of another artifact");
    found_.push_back({std::move(record), std::move(manifest)});
    return absl::OkStatus();
  };
  const absl::Status status = read();
  LOG_IF(WARNING, !status.ok()) << "What was kept of " << name << " cannot be used: " << status.message();
}

std::vector<KeptSegment> KeptPool::TakeSegments(uint64_t most_bytes) {
  absl::flat_hash_map<std::string, uint64_t> bytes;
  for (const KeptSegment& segment : segments_) bytes[segment.name] = FileBytes(segment.fd.get());
  const auto needs = [](const Found& found) {
    std::set<std::string> names;
    for (const NamedExtent& extent : found.record.extents) names.insert(extent.segment);
    return names;
  };
  std::set<std::string> wanted;
  uint64_t wanted_bytes = 0;
  // By the number of segments, so that a replica which is spread over many leaves no room for the others.
  std::ranges::stable_sort(found_, {}, [&](const Found& found) { return needs(found).size(); });
  for (const Found& found : found_) {
    uint64_t more = 0;
    const std::set<std::string> names = needs(found);
    for (const std::string& name : names) more += wanted.contains(name) ? 0 : bytes[name];
    if (more > most_bytes - wanted_bytes) continue;
    wanted.insert(names.begin(), names.end());
    wanted_bytes += more;
  }
  std::vector<KeptSegment> taken;
  for (KeptSegment& segment : segments_) {
    if (wanted.contains(segment.name)) taken.push_back(std::move(segment));
  }
  segments_.clear();
  return taken;
}

void KeptPool::OnReplaced(const PoolSegment& made, const std::string& made_name,
                          const std::string& gone_name) {
  keeper_.Drop(SegmentName(gone_name));
  absl::StatusOr<UniqueFd> fd = Duplicate(made.fd);
  if (fd.ok()) keeper_.Put(SegmentName(made_name), *std::move(fd));
  LOG_IF(WARNING, !fd.ok()) << fd.status();
}

void KeptPool::Attach(HostPool* pool) {
  pool_ = pool;
  std::set<std::string> stay;
  for (Found& found : found_) {
    absl::StatusOr<HostAllocation> memory =
        pool->Adopt(found.manifest->layout().image_bytes, found.record.extents);
    if (!memory.ok()) {
      LOG(INFO) << "What was kept of " << found.manifest->id() << " is let go: " << memory.status().message();
      continue;
    }
    stay.insert(ReplicaName(found.manifest->id()));
    replicas_.push_back({std::move(found.manifest), *std::move(memory)});
  }
  found_.clear();
  const std::vector<std::string> segments = pool->segment_names();
  for (size_t i = 0; i < segments.size(); ++i) {
    stay.insert(SegmentName(segments[i]));
    if (pool->kept(i)) continue;
    absl::StatusOr<UniqueFd> fd = Duplicate(pool->segments()[i].fd);
    if (fd.ok()) keeper_.Put(SegmentName(segments[i]), *std::move(fd));
    LOG_IF(WARNING, !fd.ok()) << fd.status();
  }
  {
    absl::MutexLock lock(&mutex_);
    stats_.replicas = stats_.waiting = static_cast<uint32_t>(replicas_.size());
    // Who was attached to something else has memory that is nobody's any more.
    absl::erase_if(held_, [&](const auto& held) { return !stay.contains(ReplicaName(held.first)); });
    for (const auto& [artifact_id, held] : held_) {
      for (const Holder& holder : held.holders) stay.insert(holder.name);
    }
  }
  for (const std::string& name : names_) {
    if (!stay.contains(name)) keeper_.Drop(name);
  }
  names_.clear();
  pool->DropUnusedKept();
}

std::vector<KeptReplica> KeptPool::TakeReplicas() { return std::move(replicas_); }

void KeptPool::SetEngine(StoreEngine* engine) {
  absl::MutexLock lock(&mutex_);
  engine_ = engine;
}

void KeptPool::Stop() {
  absl::flat_hash_map<std::string, Held> held;  // whose leases end without the lock
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    engine_ = nullptr;
    held.swap(held_);
  }
  if (pool_ == nullptr) return;
  pool_->StopReplacing();
  held.clear();
  replicas_.clear();  // of a start that failed
}

void KeptPool::OnSettled(const std::string& artifact_id, std::unique_ptr<ReplicaLease> lease) {
  const bool matched = lease != nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return;
    --stats_.waiting;
    stats_.mismatched += matched ? 0 : 1;
    const auto held = held_.find(artifact_id);
    if (held != held_.end() && matched) held->second.lease = std::move(lease);
  }
  if (matched) return;
  keeper_.Drop(ReplicaName(artifact_id));
  DropHolders([&](const std::string& artifact, const Holder&) { return artifact == artifact_id; });
}

bool KeptPool::Holder::of(pid_t pid) const {
  return pid > 0 && absl::StartsWith(name, absl::StrCat(kHolderPrefix, pid, "/")) && !HasEnded(process.get());
}

void KeptPool::DropHolders(absl::FunctionRef<bool(const std::string&, const Holder&)> goes) {
  std::vector<std::string> names;
  std::vector<std::unique_ptr<ReplicaLease>> leases;  // end without the lock
  {
    absl::MutexLock lock(&mutex_);
    for (auto held = held_.begin(); held != held_.end();) {
      const auto here = held++;
      Held& one = here->second;
      std::erase_if(one.holders, [&](const Holder& holder) {
        if (!goes(here->first, holder)) return false;
        names.push_back(holder.name);
        return true;
      });
      if (!one.holders.empty()) continue;
      leases.push_back(std::move(one.lease));
      held_.erase(here);
    }
  }
  for (const std::string& name : names) keeper_.Drop(name);
}

std::shared_ptr<void> KeptPool::NoteHolder(pid_t pid, UniqueFd process, const std::string& artifact_id) {
  const std::string name = HolderName(pid, artifact_id);
  keeper_.Put(name, std::move(process));
  DropHolders([&](const std::string& artifact, const Holder& holder) {
    return artifact == artifact_id && holder.of(pid);
  });
  // The pointer is never looked at: only its end is.
  return std::shared_ptr<void>(this, [name](void* pool) {
    auto* const self = static_cast<KeptPool*>(pool);
    {
      absl::MutexLock lock(&self->mutex_);
      if (self->stopped_) return;
    }
    self->keeper_.Drop(name);
  });
}

void KeptPool::Mend() {
  keeper_.Mend();
  DropHolders([](const std::string&, const Holder& holder) { return HasEnded(holder.process.get()); });
}

KeptPool::Stats KeptPool::stats() const {
  absl::MutexLock lock(&mutex_);
  Stats stats = stats_;
  for (const auto& [artifact_id, held] : held_) {
    stats.awaited_holders += static_cast<uint32_t>(held.holders.size());
  }
  for (size_t i = 0; pool_ != nullptr && i < pool_->segments().size(); ++i) {
    if (pool_->kept(i)) stats.read_only_bytes += pool_->segments()[i].bytes;
  }
  return stats;
}

void KeptPool::OnReplicaChanged(const ReplicaInfo& replica, const std::shared_ptr<const Manifest>& manifest) {
  if (replica.location.kind == LocationKind::kCpu && manifest != nullptr) Record(replica, *manifest);
  if (replica.location.kind == LocationKind::kGpu) RecordOnGpu(replica);
  next_->OnReplicaChanged(replica, manifest);
}

void KeptPool::OnTransferEnded(const TransferReport& report) { next_->OnTransferEnded(report); }

// Only so that the next daemon can say what went with this one.
void KeptPool::RecordOnGpu(const ReplicaInfo& replica) {
  const std::string name = absl::StrCat(kGpuPrefix, replica.id);
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return;
  }
  if (replica.state == ReplicaState::kGone) keeper_.Drop(name);
  if (replica.state != ReplicaState::kReady) return;
  UniqueFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (nothing) keeper_.Put(name, std::move(nothing));
}

// A record that is there for a moment longer than its replica does no harm: nothing is served by it that does
// not match its digests.
void KeptPool::Record(const ReplicaInfo& replica, const Manifest& manifest) {
  StoreEngine* engine = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const auto recorded = recorded_.find(manifest.id());
    const bool known = recorded != recorded_.end() && recorded->second == replica.id;
    if (engine_ == nullptr || known == (replica.state == ReplicaState::kReady)) return;
    if (replica.state == ReplicaState::kReady) {
      engine = engine_;
      recorded_.insert_or_assign(manifest.id(), replica.id);
    } else if (replica.state == ReplicaState::kGone) {
      recorded_.erase(recorded);
    } else {
      return;
    }
  }
  if (engine == nullptr) return keeper_.Drop(ReplicaName(manifest.id()));
  const absl::StatusOr<std::unique_ptr<ReplicaLease>> lease = engine->LeaseReplica(replica.id);
  if (!lease.ok() || replica.image_bytes == 0) return;  // it is on its way out; or there is nothing to keep
  absl::StatusOr<UniqueFd> fd = WriteRecord(
      EncodeRecord({.manifest = manifest.bytes(), .extents = pool_->Named(*(*lease)->memory().host)}));
  if (fd.ok()) keeper_.Put(ReplicaName(manifest.id()), *std::move(fd));
  LOG_IF(WARNING, !fd.ok()) << fd.status();
}

}  // namespace tensorcast::daemon
