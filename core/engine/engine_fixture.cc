#include "core/engine/engine_fixture.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "base/steady_time.h"

namespace tensorcast::testing {
namespace {}  // namespace

void RecordingListener::OnReplicaChanged(const ReplicaInfo& replica,
                                         const std::shared_ptr<const Manifest>& manifest) {
  absl::MutexLock lock(&mutex_);
  std::vector<ReplicaState>& states = states_[replica.id];
  // The listener is also told of changes that leave the state as it is, such as another chunk.
  if (!states.empty() && states.back() != replica.state) {
    CHECK(IsLegalTransition(states.back(), replica.state));
  }
  if (replica.state == ReplicaState::kReady) {
    CHECK(manifest != nullptr);
    CHECK_EQ(manifest->id(), replica.artifact_id);
    CHECK_EQ(replica.chunks_present, replica.chunks_total);
  }
  if (states.empty() || states.back() != replica.state) states.push_back(replica.state);
}

void RecordingListener::OnTransferEnded(const TransferReport& report) {
  absl::MutexLock lock(&mutex_);
  reports_.push_back(report);
}

std::vector<ReplicaState> RecordingListener::StatesOf(const std::string& replica_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = states_.find(replica_id);
  return found == states_.end() ? std::vector<ReplicaState>() : found->second;
}

std::vector<TransferReport> RecordingListener::reports() const {
  absl::MutexLock lock(&mutex_);
  return reports_;
}

void RecordingListener::WaitForReports(size_t count) const {
  absl::MutexLock lock(&mutex_);
  auto enough = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return reports_.size() >= count; };
  mutex_.Await(absl::Condition(&enough));
}

void RecordingListener::WaitForState(const std::string& replica_id, ReplicaState state) const {
  absl::MutexLock lock(&mutex_);
  auto reached = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const auto found = states_.find(replica_id);
    return found != states_.end() && found->second.back() == state;
  };
  mutex_.Await(absl::Condition(&reached));
}

absl::Status ScriptedGuard::MayEvict(const ReplicaInfo& replica) {
  absl::MutexLock lock(&mutex_);
  asked_.push_back(replica.artifact_id);
  if (undecided_) return absl::UnavailableError("scripted: the store is away");
  // The real guard asks the global store, which refuses to lose the last copy.
  return refused_.contains(replica.artifact_id) ? absl::FailedPreconditionError("scripted: the last copy")
                                                : absl::OkStatus();
}

void ScriptedGuard::Refuse(const std::string& artifact_id) {
  absl::MutexLock lock(&mutex_);
  refused_.insert(artifact_id);
}

void ScriptedGuard::SetUndecided(bool undecided) {
  absl::MutexLock lock(&mutex_);
  undecided_ = undecided;
}

std::vector<std::string> ScriptedGuard::asked() const {
  absl::MutexLock lock(&mutex_);
  return asked_;
}

EngineFixture::EngineFixture() {}

EngineFixture::~EngineFixture() {
  if (engine_ != nullptr) Stop();
  store_.reset();
}

void EngineFixture::Start(const Setup& setup) {
  setup_ = setup;
  HostPool::Options options;
  // Staging buffers of these tests take a granule each, so that `host_granules` are left for replicas.
  options.bytes = (setup.host_granules + setup.staging_buffers) * kGranuleBytes;
  options.use_huge_pages = false;
  options.share_granules = setup.share_granules;
  // A test touches little of the pool: to make all of its pages would only take time.
  options.prefault_threads = 0;
  auto pool = HostPool::Create(std::move(options));
  CHECK_OK(pool.status());
  pool_ = *std::move(pool);
  auto devices =
      CreateFakeRuntime({.device_count = 4, .device_bytes = uint64_t{64} << 20, .hooks = HooksOf(faults_)});
  CHECK_OK(devices.status());
  devices_ = *std::move(devices);
  auto store = ArtifactStore::Open(directory_.path());
  CHECK_OK(store.status());
  store_ = std::make_unique<FaultyStore>(*std::move(store));
  Restart();
}

void EngineFixture::Restart() {
  engine_.reset();
  // The old engine still tells the old listener of what it ends, so it goes before it.
  listener_ = std::make_unique<RecordingListener>();
  EngineOptions options;
  options.host_pool = pool_.get();
  options.devices = devices_.get();
  options.device_pool_bytes = setup_.device_pool_bytes;
  options.artifact_store = setup_.disk ? store_.get() : nullptr;
  options.eviction_guard = setup_.guard ? &guard_ : nullptr;
  options.listener = listener_.get();
  options.broadcaster = setup_.broadcaster;
  options.max_concurrent_ingests = setup_.max_concurrent_ingests;
  options.copy_threads = 2;
  options.staging_buffers = setup_.staging_buffers;
  options.staging_buffer_bytes = kStagingBytes;
  options.device_verification = setup_.device_verification;
  options.distrust_other_hosts = setup_.distrust_other_hosts;
  options.peer_timeout = setup_.peer_timeout;
  auto engine = StoreEngine::Create(options);
  CHECK_OK(engine.status());
  engine_ = *std::move(engine);
}

void EngineFixture::Stop() {
  // The destructor of the engine waits for its ingests and ends what they held.
  engine_.reset();
  // The engine is gone, so what is used now was leaked.
  EXPECT_EQ(pool_->stats().used_bytes, 0u) << "the engine left memory behind";
  // All of it: the device's own count has to be back to zero too.
  auto whole = devices_->Allocate(0, uint64_t{64} << 20);
  EXPECT_TRUE(whole.ok()) << "the engine left device memory behind: " << whole.status();
  if (whole.ok()) {
    EXPECT_TRUE(devices_->Free(*whole).ok());
  }
}

std::unique_ptr<PendingReplica> EngineFixture::Materialize(const TestArtifact& artifact, Location location,
                                                           std::shared_ptr<SourceProvider> sources,
                                                           const RequestContext& context,
                                                           bool wait_for_space) {
  auto pending = engine_->Ingest(context, {artifact.manifest, location, std::move(sources), wait_for_space});
  CHECK_OK(pending.status());
  return *std::move(pending);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> EngineFixture::Get(const TestArtifact& artifact,
                                                                 Location location,
                                                                 std::shared_ptr<SourceProvider> sources,
                                                                 bool wait_for_space) {
  auto pending =
      engine_->Ingest(ContextFor(), {artifact.manifest, location, std::move(sources), wait_for_space});
  if (!pending.ok()) return pending.status();
  return (*pending)->Wait(ContextFor());
}

std::unique_ptr<ReplicaLease> EngineFixture::MustGet(const TestArtifact& artifact, Location location) {
  auto lease = Get(artifact, location, GoodProvider(artifact));
  CHECK_OK(lease.status());
  return *std::move(lease);
}

absl::StatusOr<std::unique_ptr<ReplicaLease>> EngineFixture::IngestFirst(
    const TestArtifact& artifact, Location location, std::shared_ptr<SourceProvider> sources) {
  auto pending = engine_->Ingest(ContextFor(), {.location = location,
                                                .sources = std::move(sources),
                                                .new_layout = artifact.layout,
                                                .new_metadata = artifact.manifest->metadata()});
  if (!pending.ok()) return pending.status();
  return (*pending)->Wait(ContextFor());
}

std::vector<std::byte> EngineFixture::Read(const ReplicaLease& lease) {
  const uint64_t bytes = lease.manifest()->layout().image_bytes;
  std::vector<std::byte> image(bytes);
  switch (lease.location().kind) {
    case LocationKind::kCpu:
      return Gather(lease.memory().host->Spans(0, bytes));
    case LocationKind::kGpu: {
      auto stream = devices_->CreateStream(lease.location().device);
      CHECK_OK(stream.status());
      CHECK_OK((*stream)->CopyToHost(image.data(), lease.memory().device, bytes));
      CHECK_OK((*stream)->Synchronize());
      return image;
    }
    case LocationKind::kDisk:
      CHECK_EQ(pread(lease.memory().file, image.data(), bytes,
                     static_cast<off_t>(lease.memory().file_image_offset)),
               static_cast<ssize_t>(bytes));
      return image;
  }
  return image;
}

void EngineFixture::WaitUntilIdle() {
  // The report is the last that is heard of an ingest, and the engine has forgotten it by then.
  engine_->AwaitNoIngests(SteadyTime::InfiniteFuture());
}

Reader::Reader(absl::StatusOr<std::unique_ptr<ReplicaLease>> lease)
    : lease_(std::move(lease).value()),
      chunks_(lease_->availability()),
      watch_(chunks_->OnChange([this] {
        if (chunks_->ended()) Stop();
      })),
      // The observer runs under the availability's lock, where a lease must not end: so this thread ends it.
      thread_([this] {
        stop_.WaitForNotification();
        lease_.reset();
      }) {
  // The end may have come before the watch was there.
  if (chunks_->ended()) Stop();
}

Reader::~Reader() {
  // First: its observer uses the rest.
  watch_ = Availability::Watch();
  Stop();
  thread_.join();
}

void Reader::Stop() {
  std::call_once(stops_, [this] { stop_.Notify(); });
}

std::shared_ptr<ScriptedProvider> GoodProvider(const TestArtifact& artifact) {
  return ProviderOf({MakeControl(artifact.image)});
}

std::shared_ptr<ScriptedProvider> ProviderOf(const std::vector<std::shared_ptr<SourceControl>>& controls) {
  return std::make_shared<ScriptedProvider>(controls);
}

RequestContext ContextFor(absl::Duration timeout) {
  RequestContext context;
  if (timeout != absl::InfiniteDuration()) context.deadline = SteadyNow() + timeout;
  return context;
}

}  // namespace tensorcast::testing
