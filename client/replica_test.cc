#include "tensorcast/replica.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/testing/eventually.h"
#include "client/testing/client_fixture.h"

namespace tensorcast::client::replica_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using ReplicaTest = ClientTest;

TEST_F(ReplicaTest, Replica_ListsTensorsInImageOrder) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  const std::vector<TensorView>& tensors = (*replica)->tensors();
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, DType::kU8);
  EXPECT_THAT(tensors[0].shape, ElementsAre(5u));
  EXPECT_EQ(tensors[0].nbytes, 5u);
  EXPECT_EQ(tensors[0].host.data(), (*replica)->image().data());
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].dtype, DType::kF32);
  EXPECT_THAT(tensors[1].shape, ElementsAre(2u));
  EXPECT_EQ(Text(tensors[1].host), "12345678");
  EXPECT_FALSE(tensors[1].device);
}

TEST_F(ReplicaTest, GetOfChosenTensors_ListsOnlyThem) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {.tensors = {"[b-z]*"}});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_THAT(daemon_->last_materialize.tensors(), ElementsAre("[b-z]*"));
  ASSERT_EQ((*replica)->tensors().size(), 1u);
  EXPECT_EQ((*replica)->tensors().front().name, "b");
  EXPECT_EQ(Text((*replica)->Find("b")->host), "12345678");
  const absl::Status other = (*replica)->Find("a").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
  EXPECT_THAT(other.message(), HasSubstr("\"a\""));
  EXPECT_TRUE(absl::IsNotFound((*replica)->Find("c").status()));
  EXPECT_THAT((*replica)->image(), IsEmpty()) << "not all of it may be there";
  EXPECT_EQ((*replica)->tensor_count(), 2u);
  EXPECT_EQ((*replica)->image_bytes(), 512u);
}

TEST_F(ReplicaTest, GetOfAllTensorsByName_HasWholeImage) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {.tensors = {"b", "a"}});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_EQ((*replica)->tensors().size(), 2u);
  EXPECT_EQ((*replica)->image().size(), 512u);
}

TEST_F(ReplicaTest, TensorPatternWithoutMatch_IsRefused) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  const absl::Status nothing = client_->Get(Context(), put->artifact_id, {.tensors = {"c*"}}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(nothing)) << nothing;
  EXPECT_THAT(nothing.message(), HasSubstr("\"c*\""));
  const std::vector<std::string> many(100'000, "a");
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Get(Context(), put->artifact_id, {.tensors = many}).status()));
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return daemon_->handles().leases() == 0; }));
}

TEST_F(ReplicaTest, WritesToCopyOnWriteReplica_StayInTheirReplica) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  auto writable = client_->Get(Context(), put->artifact_id, {.copy_on_write = true});
  ASSERT_TRUE(writable.ok()) << writable.status();
  auto other = client_->Get(Context(), put->artifact_id, {.copy_on_write = true});
  ASSERT_TRUE(other.ok()) << other.status();
  const TensorView tensor = *(*writable)->Find("b");
  std::memset(const_cast<std::byte*>(tensor.host.data()), 'x', tensor.nbytes);  // NOLINT(*-const-cast)
  EXPECT_EQ(Text(tensor.host), "xxxxxxxx");
  EXPECT_EQ(Text((*other)->Find("b")->host), "12345678");
  EXPECT_EQ(Text((*client_->Get(Context(), put->artifact_id, {}))->Find("b")->host), "12345678");
}

TEST_F(ReplicaTest, Replica_OutlivesItsClient) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  client_.reset();
  EXPECT_EQ(Text((*replica)->Find("a")->host), "hello");
  EXPECT_EQ((*replica)->metadata().at("format"), "pt");
  EXPECT_EQ(daemon_->handles().leases(), 1);
}

TEST_F(ReplicaTest, PaddingBetweenTensors_IsZero) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_EQ(Text((*replica)->image().subspan(5, 251)), std::string(251, '\0'));
}

TEST_F(ReplicaTest, DestroyedReplica_ReleasesItsLease) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_EQ(daemon_->handles().leases(), 1);
  replica->reset();
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return daemon_->handles().leases() == 0; }));
}

TEST_F(ReplicaTest, DaemonStops_ReplicaIsLostButReadable) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  daemon_->StopServing();
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return (*replica)->lost(); }));
  EXPECT_EQ(Text((*replica)->Find("a")->host), "hello");
  daemon_->Serve();
  EXPECT_TRUE(client_->Get(Context(), put->artifact_id, {}).ok());
}

TEST_F(ReplicaTest, GpuReplica_IsOpenedClosedAndAcknowledged) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->device_claims = true;
  auto replica = client_->Get(Context(), put->artifact_id, {.location = "gpu:0"});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_THAT(devices_.opened, ElementsAre("handle"));
  EXPECT_EQ((*replica)->Find("b")->device.address, 0x1000u + 256);
  EXPECT_TRUE((*replica)->Find("b")->host.empty());
  EXPECT_EQ((*replica)->tensors()[1].device.address, 0x1000u + 256);
  EXPECT_TRUE((*replica)->image().empty());
  EXPECT_EQ(daemon_->handles().leases(), 1);
  replica->reset();
  EXPECT_THAT(devices_.closed, ElementsAre(0x1000));
  // Without the acknowledgement the daemon would hold the lease until this process ends.
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return daemon_->handles().leases() == 0; }));
}

TEST_F(ReplicaTest, DlpackView_HasTypeShapeAndStridesOfTensor) {
  const std::string bytes(24, 'x');
  const PutTensor tensors[] = {{"matrix", DType::kBF16, {2, 3, 2}, Bytes(bytes)},
                               {"none", DType::kF32, {3, 0, 5}, {}},
                               {"packed", DType::kF4, {4, 12}, Bytes(bytes)},
                               {"scalar", DType::kF8E4M3, {}, Bytes("x")}};
  auto put = client_->Put(Context(), tensors, {}, {});
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  const auto view_of = [&](std::string_view name) {
    const TensorView tensor = (*replica)->Find(name).value();
    absl::StatusOr<DlpackView> view = (*replica)->Dlpack(tensor);
    EXPECT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->data, tensor.host.data());
    EXPECT_EQ(view->device_type, 1) << "kDLCPU";
    EXPECT_EQ(view->type_lanes, 1);
    return *std::move(view);
  };
  const DlpackView matrix = view_of("matrix");
  EXPECT_EQ(matrix.type_code, 4) << "kDLBfloat";
  EXPECT_EQ(matrix.type_bits, 16);
  EXPECT_THAT(matrix.shape, ElementsAre(2, 3, 2));
  EXPECT_THAT(matrix.strides, ElementsAre(6, 2, 1));
  EXPECT_THAT(view_of("none").shape, ElementsAre(3, 0, 5));
  const DlpackView packed = view_of("packed");
  EXPECT_EQ(packed.type_code, 17) << "kDLFloat4_e2m1fn";
  EXPECT_EQ(packed.type_bits, 4);
  EXPECT_THAT(packed.strides, ElementsAre(12, 1));
  const DlpackView scalar = view_of("scalar");
  EXPECT_EQ(scalar.type_code, 10) << "kDLFloat8_e4m3fn";
  EXPECT_THAT(scalar.shape, IsEmpty());
}

TEST_F(ReplicaTest, DlpackViewOnGpu_NeedsCudaAndAttachedMemory) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->device_claims = true;
  auto replica = client_->Get(Context(), put->artifact_id, {.location = "gpu:0"});
  ASSERT_TRUE(replica.ok()) << replica.status();
  const absl::StatusOr<DlpackView> view = (*replica)->Dlpack((*replica)->tensors()[1]);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->device_type, 2) << "kDLCUDA";
  EXPECT_EQ(view->device_id, (*replica)->tensors()[1].device.device);
  EXPECT_EQ(reinterpret_cast<uint64_t>(view->data), 0x1000u + 256);
  devices_.backend_name = "fake";
  EXPECT_TRUE(absl::IsFailedPrecondition((*replica)->Dlpack((*replica)->tensors()[1]).status()));
  devices_.backend_name = "cuda";
  auto described = client_->Get(Context(), put->artifact_id, {.attach = false});
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_TRUE(absl::IsFailedPrecondition((*described)->Dlpack((*described)->tensors()[0]).status()));
}

TEST_F(ReplicaTest, GetAt_ReturnsReplicaPerLocation) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->device_claims = true;
  const std::string all[] = {"gpu:all"};
  auto replicas = client_->GetAt(Context(), put->artifact_id, all);
  ASSERT_TRUE(replicas.ok()) << replicas.status();
  ASSERT_EQ(replicas->size(), 1u);
  EXPECT_EQ(daemon_->last_materialize.location().device(), 2) << "the daemon's only GPU";
  EXPECT_TRUE(absl::IsInvalidArgument(client_->GetAt(Context(), put->artifact_id, {}).status()));
  const std::string wrong[] = {"cpu", "nowhere"};
  const absl::Status refused = client_->GetAt(Context(), put->artifact_id, wrong).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("get ", put->artifact_id, " at nowhere: ")));
  replicas->clear();
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return daemon_->handles().leases() == 0; }));
}

TEST_F(ReplicaTest, GetCancelledAfterResult_LeavesNoTicket) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->hang_after_result = true;
  const RequestContext context = Context();
  GetOptions options;
  options.on_progress = [&context](const TransferProgress& progress) {
    if (progress.bytes_done == FakeDaemon::kBytesAfterResult) context.cancellation.Cancel();
  };
  EXPECT_TRUE(absl::IsCancelled(client_->Get(context, put->artifact_id, options).status()));
  EXPECT_EQ(daemon_->handles().tickets(), 0) << "and not only when it expires";
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return daemon_->handles().leases() == 0; }));
}

TEST_F(ReplicaTest, PutOfGpuTensorWithoutDeviceRuntime_IsRefused) {
  auto client = Client::Connect({.daemon = daemon_->address()});
  ASSERT_TRUE(client.ok()) << client.status();
  const PutTensor tensor{
      .name = "t", .dtype = DType::kU8, .shape = {4}, .device = {.device = 0, .address = 4096}};
  EXPECT_TRUE(absl::IsFailedPrecondition((*client)->Put(Context(), {&tensor, 1}).status()));
  PutTensor both = tensor;
  both.bytes = Bytes("1234");
  EXPECT_TRUE(absl::IsInvalidArgument((*client)->Put(Context(), {&both, 1}).status()));
}

TEST_F(ReplicaTest, GetToGpuWithoutDeviceRuntime_IsRefused) {
  auto client = Client::Connect({.daemon = daemon_->address()});
  ASSERT_TRUE(client.ok()) << client.status();
  auto replica = (*client)->Get(Context(), "k", {.location = "gpu:0"});
  EXPECT_TRUE(absl::IsFailedPrecondition(replica.status())) << replica.status();
  EXPECT_THAT(replica.status().message(), HasSubstr("ClientOptions::devices"));
}

TEST_F(ReplicaTest, GetToDisk_MakesReplicaWithoutAttaching) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {.location = "disk"});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_EQ((*replica)->location().kind, LocationKind::kDisk);
  EXPECT_EQ(daemon_->handles().tickets(), 0);
}

// Tensors without bytes, and one without dimensions.
TEST_F(ReplicaTest, ScalarsAndEmptyTensors_KeepTheirShapes) {
  const PutTensor tensors[] = {{"scalar", DType::kU8, {}, Bytes("x")}, {"nothing", DType::kF32, {3, 0}, {}}};
  auto put = client_->Put(Context(), tensors, {}, {});
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  auto scalar = (*replica)->Find("scalar");
  ASSERT_TRUE(scalar.ok()) << scalar.status();
  EXPECT_THAT(scalar->shape, IsEmpty());
  EXPECT_EQ(Text(scalar->host), "x");
  auto nothing = (*replica)->Find("nothing");
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_THAT(nothing->shape, ElementsAre(3u, 0u));
  EXPECT_EQ(nothing->nbytes, 0u);
  EXPECT_THAT(nothing->host, IsEmpty());
}

TEST_F(ReplicaTest, MissingTensor_ErrorNamesItAndItsArtifact) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  const absl::Status missing = (*replica)->Find("c").status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_EQ(missing.message(), absl::StrCat("find tensor \"c\": artifact ", put->artifact_id,
                                            " has no such tensor; tensors() lists the tensors"));
}

// No client reads beyond what the manifest describes.
TEST_F(ReplicaTest, HandlesThatDifferFromManifest_AreDataLossWithoutLease) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->image_bytes_of_claims = 4096;
  auto replica = client_->Get(Context(), put->artifact_id, {});
  EXPECT_TRUE(absl::IsDataLoss(replica.status())) << replica.status();
  EXPECT_THAT(replica.status().message(), HasSubstr("has 4096 bytes, but the manifest"));
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return daemon_->handles().leases() == 0; }));
}

TEST_F(ReplicaTest, GpuHandleCannotBeOpened_GetFailsAndReleasesLease) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->device_claims = true;
  devices_.open_error = absl::NotFoundError("this process does not see the device");
  auto replica = client_->Get(Context(), put->artifact_id, {.location = "gpu:0"});
  EXPECT_TRUE(absl::IsNotFound(replica.status())) << replica.status();
  EXPECT_THAT(devices_.closed, IsEmpty());
  EXPECT_EQ(daemon_->handles().leases(), 0);
}

TEST_F(ReplicaTest, GetFailsBeforeOpeningGpuMemory_LeavesNoLease) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->device_claims = true;
  daemon_->image_bytes_of_claims = 4096;  // which is found after the claim
  auto replica = client_->Get(Context(), put->artifact_id, {.location = "gpu:0"});
  EXPECT_TRUE(absl::IsDataLoss(replica.status())) << replica.status();
  EXPECT_THAT(devices_.opened, IsEmpty());
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return daemon_->handles().leases() == 0; }));
}

// Memory that this process may still have mapped is not for another replica.
TEST_F(ReplicaTest, GpuReplicaThatFailsToClose_KeepsItsLease) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->device_claims = true;
  auto replica = client_->Get(Context(), put->artifact_id, {.location = "gpu:0"});
  ASSERT_TRUE(replica.ok()) << replica.status();
  devices_.close_error = absl::InternalError("busy");
  ::testing::internal::CaptureStderr();
  replica->reset();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("the daemon keeps the memory of this replica until"));
  EXPECT_THAT(devices_.closed, ElementsAre(0x1000));
  EXPECT_EQ(daemon_->handles().leases(), 1);
}

}  // namespace
}  // namespace tensorcast::client::replica_test
