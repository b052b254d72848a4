#include "core/engine/ingest_runner.h"

#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/engine/local_sources.h"
#include "core/engine/pipeline.h"
#include "otel/api/span.h"

namespace tensorcast {

absl::Status IngestRunner::Check(const IngestSpec& spec) const {
  const Location location = spec.location;
  if (location.kind == LocationKind::kCpu) {
    return absl::OkStatus();
  }
  if (location.kind == LocationKind::kGpu) {
    TC_RETURN_IF_ERROR(tools_.device_pool->CheckDevice(location.device));
  } else if (tools_.artifact_store == nullptr) {
    return absl::FailedPreconditionError(
        "this node has no disk tier: configure a folder for packed artifacts");
  }
  const ImageLayout& layout = spec.layout();
  const uint64_t largest = std::min(layout.chunk_bytes, layout.image_bytes);
  if (largest > tools_.staging->buffer_bytes() || tools_.staging->buffers() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("chunks of ", largest, " bytes cannot be staged on their way to ", location.ToString(),
                     ": there are ", tools_.staging->buffers(), " staging buffers of ",
                     tools_.staging->buffer_bytes(), " bytes; make them larger"));
  }
  return absl::OkStatus();
}

IngestRunner::Result IngestRunner::Run(IngestJob& job, const std::function<void(bool waiting)>& on_wait) {
  const RequestContext context = job.Context();
  const otel::Scope scope(context);  // what is logged below names the span of the request
  Result result;
  job.Start();
  AtTheEnd ended;
  result.lease = Make(job, on_wait, ended);
  if (absl::Status abandoned = job.abandoned(); !abandoned.ok()) {
    result.lease = abandoned;
  }
  TransferReport& report = result.report = job.ReportSoFar();
  report.refetched_chunks = ended.refetched_chunks;
  report.verified_chunks = ended.verified_chunks;
  report.changes = std::move(ended.changes);
  report.status = result.lease.status();
  if (result.lease.ok()) {
    report.artifact_id = (*result.lease)->manifest()->id();
    report.replica_id = (*result.lease)->replica_id();
  }
  if (job.spec().sources != nullptr) {
    job.spec().sources->Finished(report.status);
  }
  return result;
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> IngestRunner::Make(IngestJob& job,
                                                                 const std::function<void(bool)>& on_wait,
                                                                 AtTheEnd& ended) {
  const IngestSpec& spec = job.spec();
  auto make = [&]() -> absl::StatusOr<std::unique_ptr<ReplicaLease>> {
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<Destination> destination, MakeDestination(job, on_wait));
    tools_.table->StartFilling(job.replica_id());
    std::vector<Digest> digests;
    TC_RETURN_IF_ERROR(Fill(job, on_wait, *destination, ended, digests));
    std::shared_ptr<const Manifest> manifest = spec.manifest;
    if (manifest == nullptr) {
      TC_ASSIGN_OR_RETURN(manifest,
                          Manifest::Create(spec.first_layout, std::move(digests), spec.first_metadata));
    }
    return Publish(job, *destination, std::move(manifest));
  };
  absl::StatusOr<std::unique_ptr<ReplicaLease>> lease = make();
  if (!lease.ok()) {
    // The destination is destroyed by now, so whoever waits for space finds the memory free.
    tools_.table->Fail(job.replica_id());
  }
  return lease;
}

absl::Status IngestRunner::Fill(IngestJob& job, const std::function<void(bool)>& on_wait,
                                Destination& destination, AtTheEnd& ended, std::vector<Digest>& digests) {
  const IngestSpec& spec = job.spec();
  LocalFirstSources sources(tools_.table, tools_.devices, spec.sources.get(),
                            {spec.artifact_id(), spec.location, tools_.copy_threads, tools_.artifact_store});
  sources.ObserveWaits([&job, &on_wait, waits = false](const std::string& what) mutable {
    job.progress().SetWaitingFor(what);
    const bool now = !what.empty();
    if (std::exchange(waits, now) != now) {
      on_wait(now);
    }
  });
  PipelinePlan plan;
  plan.subject = spec.subject();
  plan.layout = &spec.layout();
  plan.expected = spec.manifest != nullptr ? &spec.manifest->digests() : nullptr;
  plan.destination = &destination;
  plan.sources = &sources;
  plan.progress = &job.progress();
  plan.context = [&job] { return job.Context(); };
  plan.on_chunk = [this, &job](uint32_t chunk) { tools_.table->AddChunk(job.replica_id(), chunk); };
  IngestPipeline pipeline(std::move(plan));
  absl::Status filled = pipeline.Run();
  ended = {.verified_chunks = pipeline.verified_chunks(),
           .refetched_chunks = pipeline.refetched_chunks(),
           .changes = pipeline.changes()};
  digests = pipeline.digests();
  return filled;
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> IngestRunner::Publish(
    IngestJob& job, Destination& destination, std::shared_ptr<const Manifest> manifest) {
  const bool on_disk = job.spec().location.kind == LocationKind::kDisk;
  // Over both steps, so that a removal of the same artifact's file comes before or after them, not in
  // between.
  const NameLocks::Held held = on_disk ? tools_.disk_names->Acquire(manifest->id()) : NameLocks::Held();
  TC_ASSIGN_OR_RETURN(ReplicaStorage storage, destination.Finish(manifest));
  return tools_.table->MakeReady(job.replica_id(), std::move(manifest), std::move(storage));
}

absl::StatusOr<std::unique_ptr<Destination>> IngestRunner::MakeDestination(
    IngestJob& job, const std::function<void(bool)>& on_wait) {
  const IngestSpec& spec = job.spec();
  SpaceRequest request;
  request.subject = spec.subject();
  request.bytes = spec.layout().image_bytes;
  request.wait = spec.wait_for_space;
  request.context = [&job] { return job.Context(); };
  request.on_wait = on_wait;
  TC_RETURN_IF_ERROR(job.Context().Check(absl::StrCat("ingest of ", spec.subject())));
  switch (spec.location.kind) {
    case LocationKind::kCpu: {
      TC_ASSIGN_OR_RETURN(HostAllocation memory, tools_.space->AllocateHost(request));
      return MakeHostDestination(std::move(memory));
    }
    case LocationKind::kGpu: {
      TC_ASSIGN_OR_RETURN(DeviceBlock memory, tools_.space->AllocateDevice(spec.location.device, request));
      return MakeDeviceDestination(tools_.devices, std::move(memory), tools_.staging);
    }
    case LocationKind::kDisk: {
      TC_ASSIGN_OR_RETURN(std::unique_ptr<PackedWriter> writer, CreateFile(spec));
      return MakeDiskDestination(std::move(writer), tools_.staging);
    }
  }
  return absl::InternalError("an ingest to no known location");
}

absl::StatusOr<std::unique_ptr<PackedWriter>> IngestRunner::CreateFile(const IngestSpec& spec) const {
  std::shared_ptr<const Manifest> manifest = spec.manifest;
  if (manifest == nullptr) {
    // The manifest to come is as long as this one: digests are of fixed length.
    std::vector<Digest> digests(spec.first_layout.chunk_count());
    TC_ASSIGN_OR_RETURN(manifest,
                        Manifest::Create(spec.first_layout, std::move(digests), spec.first_metadata));
  }
  return tools_.artifact_store->Create(spec.layout(), manifest->bytes().size());
}

}  // namespace tensorcast
