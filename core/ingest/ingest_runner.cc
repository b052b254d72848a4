#include "core/ingest/ingest_runner.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/ingest/advance.h"
#include "core/ingest/destination.h"
#include "core/ingest/equal_chunks.h"
#include "core/ingest/local_sources.h"
#include "core/ingest/pipeline.h"
#include "core/ingest/provider_chain.h"
#include "otel/api/span.h"

namespace tensorcast {
namespace {

// One job at work, on one thread.
// The order of an ingest, and why it is that order:
//
//   kept replicas   compared first, since one of them may be the wanted replica or its nearest source
//   FindReady       a job may have waited long; what it wants may have been made by another in the meantime
//   Plan            what is missing, from the partial replica that the job took over
//   MakeDestination space, which may evict or wait; nothing is asked of a source before there is space
//   Fill            the pipeline, while readers already lease what is verified
//   Publish         storage and manifest to the table at once: the replica is ready or partial
//
// An error at any step ends in Make, which fails the replica; the table keeps what is verified as a partial
// replica where it can.
class IngestRun {
 public:
  IngestRun(const IngestRunnerOptions& options, IngestJob& job, const std::function<void(bool)>& on_wait)
      : options_(options),
        job_(job),
        request_(job.request()),
        is_held_(!HeldReplicaOf(request_).empty()),
        on_wait_(on_wait),
        sources_(request_.artifact_id(), request_.sources.get()) {}

  // Moves the job's replica to its end.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Make() {
    absl::StatusOr<std::unique_ptr<ReplicaLease>> lease = MakeReplica();
    const absl::Status abandoned = job_.abandoned();
    // The destination is destroyed by now, so a request that waits for space finds the memory free.
    if (!lease.ok()) options_.table->Fail(job_.replica_id(), abandoned.ok() ? lease.status() : abandoned);
    return lease;
  }

  // What the pipeline reported at its end; empty where there was not even space.
  IngestOutcome& outcome() { return outcome_; }
  // Reports the end to the provider, too.
  void Finish(const absl::Status& status) { sources_.Finished(status, outcome_.untold); }

 private:
  // The destination is a local of this function, so its buffers and memory are free before Make fails the
  // replica.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> MakeReplica() {
    // For any place: a replica that was kept in host memory is the nearest source.
    if (request_.manifest != nullptr) options_.kept->Settle(request_.artifact_id());
    if (!is_held_) {
      if (absl::StatusOr<std::unique_ptr<ReplicaLease>> ready = FindReady(); ready.ok()) return ready;
    }
    Plan();
    // After the destination: the memory that a replica leaves at its end is free then.
    const absl::Cleanup end_advance = [this] {
      if (request_.advance != nullptr) request_.advance->End();
    };
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<Destination> destination, MakeDestination());
    const ReplicaStorage memory = destination->memory();
    AddNodeProviders(memory);
    // From here on the chunks can be read as they come, where the artifact is known.
    options_.table->StartFilling(job_.replica_id(), memory, whole_);
    Fill(*destination);
    TC_RETURN_IF_ERROR(outcome_.status);
    std::shared_ptr<const Manifest> manifest = request_.manifest;
    if (manifest == nullptr) {
      TC_ASSIGN_OR_RETURN(manifest, Manifest::Create(request_.new_layout, std::move(outcome_.digests),
                                                     request_.new_metadata, request_.new_kind));
      if (request_.on_identified) request_.on_identified(manifest->id());
    }
    return Publish(*destination, std::move(manifest));
  }

  // For a first ingest this node has nothing.
  void AddNodeProviders(const ReplicaStorage& memory) {
    if (request_.manifest == nullptr) return;
    if (advances_) {
      auto staying = options_.advancer->ChunksThatStay(request_, job_.progress());
      if (staying != nullptr) sources_.Add(std::move(staying));
    }
    BroadcastReceiver receiver{.artifact_id = request_.artifact_id(),
                               .location = request_.location,
                               .replica_id = job_.replica_id(),
                               .memory = {},
                               .ingest = job_.span()};
    // A broadcast is the only writer of a receiver's memory. Here other sources write, too, and some chunks
    // stay.
    if (memory.device != nullptr && !advances_) receiver.memory = memory.device->pointer();
    sources_.Add(
        std::make_unique<LocalSources>(LocalSourcesOptions{.table = options_.table,
                                                           .devices = options_.devices,
                                                           .copy_threads = options_.copy_threads,
                                                           .artifact_store = options_.artifact_store,
                                                           .fan_out = options_.fan_out,
                                                           .wide_broadcasts = options_.wide_broadcasts,
                                                           .same_location = is_held_,
                                                           .receiver = std::move(receiver)}));
    sources_.Add(std::make_unique<EqualChunks>(EqualChunksOptions{.table = options_.table,
                                                                  .manifest = request_.manifest,
                                                                  .chunks = chunks_,
                                                                  .copy_threads = options_.copy_threads}));
  }

  // A replica that became ready while this job waited for its turn or its place.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> FindReady() {
    if (request_.manifest == nullptr) {
      return absl::NotFoundError(
          "find a ready replica: the manifest is not known yet; ingest the artifact first");
    }
    absl::StatusOr<std::unique_ptr<ReplicaLease>> ready =
        options_.table->LeaseAt(request_.artifact_id(), request_.location);
    if (ready.ok()) {
      job_.progress().SetPlan(0, request_.bytes());
      // So the replica of this job is superfluous.
      options_.table->Fail(job_.replica_id(),
                           absl::UnavailableError(absl::StrCat(
                               "ingest ", request_.artifact_id(), " to ", request_.location.ToString(),
                               ": another replica at this location is already complete; use that replica")));
    }
    return ready;
  }

  // The wanted chunks without those that are present.
  // Sets `chunks_`, `whole_` and the totals of the progress. `whole_` counts what is present and what this
  // job brings: a job for some chunks may complete a replica of which it brings only the rest.
  void Plan() {
    part_ = options_.table->FindPart(job_.replica_id());
    // All chunks are wanted and none is there: no list is needed.
    if (!request_.chunks.has_value() && part_.memory == nullptr) return;
    const ImageLayout& layout = request_.layout();
    uint64_t bytes = 0;
    uint32_t there = 0;
    chunks_.emplace();
    for (uint32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
      const bool has = part_.chunks != nullptr && part_.chunks->Has(chunk);
      const bool wanted = !request_.chunks.has_value() || std::ranges::binary_search(*request_.chunks, chunk);
      there += has || wanted ? 1 : 0;
      if (has || !wanted) continue;
      chunks_->push_back(chunk);
      bytes += layout.chunk(chunk).bytes;
    }
    whole_ = there == layout.chunk_count();
    job_.progress().SetPlan(bytes, request_.bytes() - bytes);
  }

  // The context is checked first: a queued job that all its callers have left ends here, without evicting
  // anything.
  absl::StatusOr<std::unique_ptr<Destination>> MakeDestination() {
    TC_RETURN_IF_ERROR(job_.Context().Check(absl::StrCat("ingest of ", request_.subject())));
    const Location location = request_.location;
    if (location.kind == LocationKind::kDisk) {
      TC_ASSIGN_OR_RETURN(std::unique_ptr<PackedWriter> writer, CreateFile());
      return MakeDiskDestination(std::move(writer), options_.staging);
    }
    AllocationRequest space{.subject = request_.subject(),
                            .bytes = request_.layout().image_bytes,
                            .wait = request_.wait_for_space,
                            .context = [this] { return job_.Context(); },
                            .on_wait = [this](const std::string& what) { Observe(what); }};
    TC_ASSIGN_OR_RETURN(
        std::unique_ptr<Destination> over_base,
        options_.advancer->TakeBase(request_, space, part_.memory != nullptr, job_.progress()));
    advances_ = over_base != nullptr;
    if (advances_) return over_base;
    if (location.kind == LocationKind::kGpu) {
      TC_ASSIGN_OR_RETURN(DeviceBlock memory, options_.allocator->AllocateDevice(location.device, space));
      return MakeDeviceDestination(options_.devices, std::make_shared<const DeviceBlock>(std::move(memory)),
                                   options_.staging, options_.direct);
    }
    // Nothing is requested yet: what this takes is told as waiting for memory.
    job_.progress().BeginBufferWait();
    const absl::Cleanup end_wait = [this] { job_.progress().EndBufferWait(); };
    TC_ASSIGN_OR_RETURN(HostAllocation memory, AllocateHost(space));
    return MakeHostDestination(std::move(memory));
  }

  // Once more where kept replicas were not compared yet: until then none of them could be evicted.
  absl::StatusOr<HostAllocation> AllocateHost(AllocationRequest& space) {
    absl::StatusOr<HostAllocation> memory = AllocateInPool(space);
    if (absl::IsResourceExhausted(memory.status()) && options_.kept->SettleAll()) {
      return AllocateInPool(space);
    }
    return memory;
  }

  // Three cases: the whole image; some chunks, which take only the granules under them; or more chunks of a
  // partial replica, which shares the granules that it has and needs only the missing ones. By `held_bytes`
  // the allocator knows that this memory cannot become free for the request.
  absl::StatusOr<HostAllocation> AllocateInPool(AllocationRequest& space) {
    const uint64_t image_bytes = request_.layout().image_bytes;
    space.held_bytes = 0;
    if (!chunks_.has_value()) {
      return options_.allocator->AllocateHost(space,
                                              [&](HostPool& pool) { return pool.Allocate(image_bytes); });
    }
    std::vector<ByteRange> ranges;
    for (const uint32_t chunk : *chunks_) ranges.push_back(request_.layout().chunk(chunk));
    if (part_.memory == nullptr) {
      space.bytes = std::min(image_bytes, GranuleBytes(ranges));
      return options_.allocator->AllocateHost(
          space, [&](HostPool& pool) { return pool.Allocate(image_bytes, ranges); });
    }
    space.bytes = part_.memory->MissingBytes(ranges);
    for (const ImageExtent& piece : part_.memory->extents()) space.held_bytes += piece.extent.bytes;
    return options_.allocator->AllocateHost(space,
                                            [&](HostPool& pool) { return pool.Grow(*part_.memory, ranges); });
  }

  // The image begins behind the header and the manifest, so the length of the manifest has to be known now,
  // though its digests are written last.
  absl::StatusOr<std::unique_ptr<PackedWriter>> CreateFile() const {
    std::shared_ptr<const Manifest> manifest = request_.manifest;
    if (manifest == nullptr) {
      // The manifest to come is as long as this one: digests are of fixed length.
      std::vector<ChunkDigests> digests(request_.new_layout.chunk_count(),
                                        {.xxh3 = {}, .blake3 = Blake3Digest()});
      TC_ASSIGN_OR_RETURN(manifest, Manifest::Create(request_.new_layout, std::move(digests),
                                                     request_.new_metadata, request_.new_kind));
    }
    return options_.artifact_store->Create(request_.layout(), manifest->bytes().size());
  }

  // The NUMA node of the device that the image is brought to.
  std::optional<int> NumaNode() const {
    const auto found = options_.numa_nodes.find(request_.location.device);
    if (request_.location.kind != LocationKind::kGpu || found == options_.numa_nodes.end()) {
      return std::nullopt;
    }
    return found->second;
  }

  // The run, the allocator and the provider call this on the job's thread. A source that waits for a file
  // system calls it on a slot (core/source/detached_source.h). Hence the atomic.
  void Observe(const std::string& waits_for) {
    job_.progress().SetWaitingFor(waits_for);
    const bool waits = !waits_for.empty();
    // on_wait_ counts turns, so it is told of changes alone.
    if (waits_.exchange(waits) != waits) on_wait_(waits);
  }

  // `context` and `on_chunk` are called on any slot, by several at the same time; `on_wait` is called on this
  // thread only. After on_chunk other ingests and nodes may read the chunk, before the image is whole.
  void Fill(Destination& destination) {
    const WaitObserver observe = [this](const std::string& what) { Observe(what); };
    sources_.ObserveWaits(observe);
    if (request_.manifest != nullptr && whole_) sources_.NoteFills(job_.replica_id());
    outcome_ = IngestPipeline({.subject = request_.subject(),
                               .layout = &request_.layout(),
                               .expected = request_.manifest.get(),
                               .chunks = chunks_,
                               .destination = &destination,
                               .sources = &sources_,
                               .progress = &job_.progress(),
                               .device_verification = options_.device_verification,
                               .distrust_other_hosts = options_.distrust_other_hosts,
                               .numa_node = NumaNode(),
                               .peer_timeout = options_.peer_timeout,
                               .seed = std::hash<std::string>()(job_.transfer_id()),
                               .context = [this] { return job_.Context(); },
                               .on_chunk =
                                   [this](uint32_t chunk, bool verified) {
                                     options_.table->AddChunk(job_.replica_id(), chunk, verified);
                                   },
                               .on_wait = observe})
                   .Run();
  }

  absl::StatusOr<std::unique_ptr<ReplicaLease>> Publish(Destination& destination,
                                                        std::shared_ptr<const Manifest> manifest) {
    const bool on_disk = request_.location.kind == LocationKind::kDisk;
    // Over both steps, so that a removal of the same artifact's file comes before or after them, not in
    // between.
    const NameLocks::Held held = on_disk ? options_.disk_names->Acquire(manifest->id()) : NameLocks::Held();
    TC_ASSIGN_OR_RETURN(ReplicaStorage storage, destination.Finish(manifest));
    return options_.table->Complete(job_.replica_id(), std::move(manifest), std::move(storage),
                                    /*replaces=*/is_held_ && advances_);
  }

  const IngestRunnerOptions& options_;
  IngestJob& job_;
  const IngestRequest& request_;
  const bool is_held_;  // it writes over a replica under live leases, though a ready one may be there
  const std::function<void(bool)>& on_wait_;
  ProviderChain sources_;
  ReplicaTable::Part part_;                      // of the replica that it has taken over
  std::optional<std::vector<uint32_t>> chunks_;  // that are to be brought; not set: all
  bool whole_ = true;                            // with them nothing will be missing
  bool advances_ = false;                        // it writes over an earlier version
  IngestOutcome outcome_;
  std::atomic<bool> waits_ = false;  // as it was told to on_wait_ last
};

absl::Status CheckChunks(const IngestRequest& request) {
  if (request.manifest == nullptr || request.location.kind != LocationKind::kCpu) {
    return absl::InvalidArgumentError(
        absl::StrCat("ingest a part of ", request.subject(), " to ", request.location.ToString(),
                     request.manifest == nullptr
                         ? ": the artifact is new, and only a published artifact can be partial; ingest the "
                           "whole artifact"
                         : ": only a replica in host memory can be partial; get the tensors to cpu, or get "
                           "the whole artifact"));
  }
  const std::vector<uint32_t>& chunks = *request.chunks;
  const bool ascending = std::ranges::adjacent_find(chunks, std::ranges::greater_equal()) == chunks.end();
  if (!ascending) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ingest a part of ", request.subject(),
        ": the numbers of the wanted chunks are not strictly ascending; sort the numbers, and give "
        "each number once"));
  }
  if (!chunks.empty() && chunks.back() >= request.layout().chunk_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ingest a part of ", request.subject(), ": chunk ", chunks.back(),
                     " is wanted, but the artifact has ", request.layout().chunk_count(),
                     " chunks, numbered from 0; give the number of such a chunk"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status IngestRunner::Check(const IngestRequest& request) const {
  const Location location = request.location;
  if (request.chunks.has_value()) TC_RETURN_IF_ERROR(CheckChunks(request));
  if (request.advance != nullptr &&
      (request.manifest == nullptr || request.chunks.has_value() || location.kind == LocationKind::kDisk)) {
    return absl::InvalidArgumentError(
        absl::StrCat("advance to ", request.subject(), ": ",
                     request.manifest == nullptr
                         ? "the artifact is new, and only a published artifact can replace an earlier version"
                     : request.chunks.has_value()
                         ? "a part is wanted, and only a whole artifact can replace an earlier version"
                         : "a replica on disk cannot be written over",
                     "; get the artifact without advance"));
  }
  if (location.kind == LocationKind::kCpu) return absl::OkStatus();
  if (location.kind == LocationKind::kDisk && options_.artifact_store == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "ingest ", request.subject(), " to disk: this node has no disk tier; set daemon.disk_dir"));
  }
  const ImageLayout& layout = request.layout();
  // A chunk is staged whole, in one buffer.
  const uint64_t largest = std::min(layout.chunk_bytes, layout.image_bytes);
  if (options_.staging->buffers() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("ingest ", request.subject(), " to ", location.ToString(),
                     ": this node has no staging buffers; set daemon.staging_buffers to 1 or more"));
  }
  if (largest > options_.staging->buffer_bytes()) {
    return absl::FailedPreconditionError(
        absl::StrCat("ingest ", request.subject(), " to ", location.ToString(), ": the chunks have ", largest,
                     " bytes, and a staging buffer has ", options_.staging->buffer_bytes(),
                     " bytes; give the engine larger staging buffers"));
  }
  return absl::OkStatus();
}

// `on_settled` comes as soon as the replica has its final state: what follows only reports, and the next job
// of the place need not wait for it. The provider hears of the end last, when the report is complete.
IngestRunner::Result IngestRunner::Run(IngestJob& job, const std::function<void(bool waiting)>& on_wait,
                                       absl::FunctionRef<void()> on_settled) const {
  const RequestContext context = job.Context();
  const otel::Scope scope(context);  // what is logged below names the span of the request
  Result result;
  job.Start();
  IngestRun run(options_, job, on_wait);
  result.lease = run.Make();
  on_settled();
  // What was made in spite of that is not given to a caller.
  if (absl::Status abandoned = job.abandoned(); !abandoned.ok()) result.lease = abandoned;
  TransferReport& report = result.report = job.ReportSoFar();
  report.refetched_chunks = run.outcome().refetched_chunks;
  report.reassigned_chunks = run.outcome().reassigned_chunks;
  report.verified_chunks = run.outcome().verified_chunks;
  report.changes = std::move(run.outcome().changes);
  report.status = result.lease.status();
  if (result.lease.ok()) {
    report.artifact_id = (*result.lease)->manifest()->id();
    report.replica_id = (*result.lease)->replica_id();
  }
  run.Finish(report.status);
  return result;
}

}  // namespace tensorcast
