#include "core/engine/ingest_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/engine/destination.h"
#include "core/engine/local_sources.h"
#include "core/engine/pipeline.h"
#include "otel/api/span.h"

namespace tensorcast {
namespace {

// One job at work, on one thread.
class IngestRun {
 public:
  IngestRun(const IngestRunnerOptions& options, IngestJob& job, const std::function<void(bool)>& on_wait)
      : options_(options), job_(job), request_(job.request()), on_wait_(on_wait) {}

  // Moves the job's replica to its end.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Make() {
    absl::StatusOr<std::unique_ptr<ReplicaLease>> lease = MakeReplica();
    if (!lease.ok()) {
      // The destination is destroyed by now, so whoever waits for space finds the memory free.
      options_.table->Fail(job_.replica_id());
    }
    return lease;
  }

  // What the pipeline told at its end; empty where there was not even space.
  IngestOutcome& outcome() { return outcome_; }

 private:
  absl::StatusOr<std::unique_ptr<ReplicaLease>> MakeReplica() {
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<Destination> destination, MakeDestination());
    options_.table->StartFilling(job_.replica_id());
    Fill(*destination);
    TC_RETURN_IF_ERROR(outcome_.status);
    std::shared_ptr<const Manifest> manifest = request_.manifest;
    if (manifest == nullptr) {
      TC_ASSIGN_OR_RETURN(manifest, Manifest::Create(request_.new_layout, std::move(outcome_.digests),
                                                     request_.new_metadata));
      if (request_.on_identified) request_.on_identified(manifest->id());
    }
    return Publish(*destination, std::move(manifest));
  }

  absl::StatusOr<std::unique_ptr<Destination>> MakeDestination() {
    TC_RETURN_IF_ERROR(job_.Context().Check(absl::StrCat("ingest of ", request_.subject())));
    const Location location = request_.location;
    if (location.kind == LocationKind::kDisk) {
      TC_ASSIGN_OR_RETURN(std::unique_ptr<PackedWriter> writer, CreateFile());
      return MakeDiskDestination(std::move(writer), options_.staging);
    }
    const AllocationRequest space{.subject = request_.subject(),
                                  .bytes = request_.layout().image_bytes,
                                  .wait = request_.wait_for_space,
                                  .context = [this] { return job_.Context(); },
                                  .on_wait = on_wait_};
    if (location.kind == LocationKind::kGpu) {
      TC_ASSIGN_OR_RETURN(DeviceBlock memory, options_.allocator->AllocateDevice(location.device, space));
      return MakeDeviceDestination(options_.devices, std::move(memory), options_.staging);
    }
    TC_ASSIGN_OR_RETURN(HostAllocation memory, options_.allocator->AllocateHost(space));
    return MakeHostDestination(std::move(memory));
  }

  absl::StatusOr<std::unique_ptr<PackedWriter>> CreateFile() const {
    std::shared_ptr<const Manifest> manifest = request_.manifest;
    if (manifest == nullptr) {
      // The manifest to come is as long as this one: digests are of fixed length.
      std::vector<ChunkDigests> digests(request_.new_layout.chunk_count(),
                                        {.xxh3 = {}, .blake3 = Blake3Digest()});
      TC_ASSIGN_OR_RETURN(manifest,
                          Manifest::Create(request_.new_layout, std::move(digests), request_.new_metadata));
    }
    return options_.artifact_store->Create(request_.layout(), manifest->bytes().size());
  }

  void Fill(Destination& destination) {
    LocalFirstSources sources(
        options_.table, options_.devices, request_.sources.get(),
        {request_.artifact_id(), request_.location, options_.copy_threads, options_.artifact_store});
    sources.ObserveWaits([this, waits = false](const std::string& what) mutable {
      job_.progress().SetWaitingFor(what);
      const bool now = !what.empty();
      if (std::exchange(waits, now) != now) on_wait_(now);
    });
    outcome_ =
        IngestPipeline(
            {.subject = request_.subject(),
             .layout = &request_.layout(),
             .expected = request_.manifest.get(),
             .destination = &destination,
             .sources = &sources,
             .progress = &job_.progress(),
             .distrust_other_hosts = options_.distrust_other_hosts,
             .context = [this] { return job_.Context(); },
             .on_chunk = [this](uint32_t chunk) { options_.table->AddChunk(job_.replica_id(), chunk); }})
            .Run();
  }

  absl::StatusOr<std::unique_ptr<ReplicaLease>> Publish(Destination& destination,
                                                        std::shared_ptr<const Manifest> manifest) {
    const bool on_disk = request_.location.kind == LocationKind::kDisk;
    // Over both steps, so that a removal of the same artifact's file comes before or after them, not in
    // between.
    const NameLocks::Held held = on_disk ? options_.disk_names->Acquire(manifest->id()) : NameLocks::Held();
    TC_ASSIGN_OR_RETURN(ReplicaStorage storage, destination.Finish(manifest));
    return options_.table->MakeReady(job_.replica_id(), std::move(manifest), std::move(storage));
  }

  const IngestRunnerOptions& options_;
  IngestJob& job_;
  const IngestRequest& request_;
  const std::function<void(bool)>& on_wait_;
  IngestOutcome outcome_;
};

}  // namespace

absl::Status IngestRunner::Check(const IngestRequest& request) const {
  const Location location = request.location;
  if (location.kind == LocationKind::kCpu) return absl::OkStatus();
  if (location.kind == LocationKind::kGpu) {
    TC_RETURN_IF_ERROR(options_.device_pool->CheckDevice(location.device));
  } else if (options_.artifact_store == nullptr) {
    return absl::FailedPreconditionError(
        "this node has no disk tier: configure a folder for packed artifacts");
  }
  const ImageLayout& layout = request.layout();
  const uint64_t largest = std::min(layout.chunk_bytes, layout.image_bytes);
  if (largest > options_.staging->buffer_bytes() || options_.staging->buffers() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("chunks of ", largest, " bytes cannot be staged on their way to ", location.ToString(),
                     ": there are ", options_.staging->buffers(), " staging buffers of ",
                     options_.staging->buffer_bytes(), " bytes; make them larger"));
  }
  return absl::OkStatus();
}

IngestRunner::Result IngestRunner::Run(IngestJob& job,
                                       const std::function<void(bool waiting)>& on_wait) const {
  const RequestContext context = job.Context();
  const otel::Scope scope(context);  // what is logged below names the span of the request
  Result result;
  job.Start();
  IngestRun run(options_, job, on_wait);
  result.lease = run.Make();
  if (absl::Status abandoned = job.abandoned(); !abandoned.ok()) result.lease = abandoned;
  TransferReport& report = result.report = job.ReportSoFar();
  report.refetched_chunks = run.outcome().refetched_chunks;
  report.verified_chunks = run.outcome().verified_chunks;
  report.changes = std::move(run.outcome().changes);
  report.status = result.lease.status();
  if (result.lease.ok()) {
    report.artifact_id = (*result.lease)->manifest()->id();
    report.replica_id = (*result.lease)->replica_id();
  }
  if (job.request().sources != nullptr) job.request().sources->Finished(report.status);
  return result;
}

}  // namespace tensorcast
