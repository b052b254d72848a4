// Every method of both services, called with nothing, with extreme values in every field, and with bytes that
// are not a message: each call ends with an error or an answer, and the servers serve on.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/message.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/daemon.pb.h"
#include "proto/global_store.pb.h"
#include "rpc/protocol_version.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

constexpr int kMaxDepth = 4;
constexpr std::chrono::milliseconds kDeadline(500);  // watches have no other end

// Sets every field to the `which`-th odd value of its type.
void FillWithOddValues(Message& message, int which, int depth = 0) {
  const std::string texts[] = {std::string(70000, 'x'), "../../../etc/passwd", "\n'\"; DROP TABLE keys; --",
                               std::string("a\0b", 3), "tc2:not-an-id"};
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (field->is_map()) continue;
    const bool many = field->is_repeated();
    const auto set = [&](auto setter, auto adder, auto value) {
      if (many) {
        (reflection->*adder)(&message, field, value);
      } else {
        (reflection->*setter)(&message, field, value);
      }
    };
    using R = google::protobuf::Reflection;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        set(&R::SetString, &R::AddString, texts[which % std::size(texts)]);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        set(&R::SetUInt64, &R::AddUInt64, std::numeric_limits<uint64_t>::max() >> which);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        set(&R::SetInt64, &R::AddInt64, which % 2 == 0 ? std::numeric_limits<int64_t>::min() : int64_t{-1});
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        set(&R::SetUInt32, &R::AddUInt32, std::numeric_limits<uint32_t>::max() >> which);
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        set(&R::SetInt32, &R::AddInt32, which % 2 == 0 ? std::numeric_limits<int32_t>::min() : -1);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        set(&R::SetEnumValue, &R::AddEnumValue, which % 2 == 0 ? 1 : 12345);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        set(&R::SetBool, &R::AddBool, which % 2 == 0);
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth < kMaxDepth) {
          FillWithOddValues(
              many ? *reflection->AddMessage(&message, field) : *reflection->MutableMessage(&message, field),
              which, depth + 1);
        }
        break;
      default:
        break;
    }
  }
}

// Calls any method with any bytes and reads whatever comes back, to the end.
grpc::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel, const MethodDescriptor& method,
                           const std::string& bytes, const std::string& version = rpc::kProtocolText) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  if (!version.empty()) context.AddMetadata(rpc::kProtocolKey, version);
  const std::string path = absl::StrCat("/", method.service()->full_name(), "/", method.name());
  auto stream = stub.PrepareCall(&context, path, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  wait();
  const grpc::Slice slice(bytes);
  stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  if (wait()) {
    stream->WritesDone(nullptr);
    wait();
  }
  grpc::ByteBuffer answer;
  do {
    stream->Read(&answer, nullptr);
  } while (wait());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  wait();
  queue.Shutdown();
  return status;
}

// Whether this is an answer to bad input, and not a handler that broke.
bool IsOrderly(const grpc::Status& status) {
  return status.error_code() != grpc::StatusCode::UNKNOWN &&
         status.error_code() != grpc::StatusCode::UNIMPLEMENTED &&
         status.error_code() != grpc::StatusCode::INTERNAL &&
         status.error_code() != grpc::StatusCode::DATA_LOSS;
}

class HostileCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    node_ = &cluster_.AddNode("a");
    global_store_ =
        grpc::CreateChannel(cluster_.global_store().address(), grpc::InsecureChannelCredentials());
    daemon_ = grpc::CreateChannel(node_->server().addresses().front(), grpc::InsecureChannelCredentials());
  }

  void ForEveryMethod(
      const std::function<void(const std::shared_ptr<grpc::Channel>&, const MethodDescriptor&)>& call) {
    for (const auto& [channel, service] :
         {std::pair{global_store_, v1::PublishArtifactRequest::descriptor()->file()},
          std::pair{daemon_, v1::PutArtifactRequest::descriptor()->file()}}) {
      ASSERT_EQ(service->service_count(), 1);
      for (int i = 0; i < service->service(0)->method_count(); ++i) {
        call(channel, *service->service(0)->method(i));
      }
    }
  }

  void ExpectServed() { EXPECT_TRUE(node_->client().ListKeys(Soon(), "").ok()); }

  TestCluster cluster_;
  TestNode* node_ = nullptr;
  std::shared_ptr<grpc::Channel> global_store_;
  std::shared_ptr<grpc::Channel> daemon_;
};

TEST_F(HostileCalls, OtherProtocolVersion_IsRefusedByEveryMethod) {
  for (const std::string version : {"", "1", "3"}) {
    ForEveryMethod([&](const auto& channel, const MethodDescriptor& method) {
      const grpc::Status status = CallWithBytes(channel, method, "", version);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION)
          << method.full_name() << ": " << status.error_message();
      EXPECT_THAT(status.error_message(), ::testing::HasSubstr("protocol version")) << method.full_name();
    });
  }
  ExpectServed();
}

TEST_F(HostileCalls, EmptyRequest_GetsOrderlyAnswerFromEveryMethod) {
  ForEveryMethod([](const auto& channel, const MethodDescriptor& method) {
    const grpc::Status status = CallWithBytes(channel, method, "");
    EXPECT_TRUE(IsOrderly(status)) << method.full_name() << ": " << status.error_code() << " "
                                   << status.error_message();
  });
  ExpectServed();
}

TEST_F(HostileCalls, OddValuesInEveryField_GetOrderlyAnswerFromEveryMethod) {
  google::protobuf::DynamicMessageFactory factory;
  for (int which = 0; which < 5; ++which) {
    ForEveryMethod([&](const auto& channel, const MethodDescriptor& method) {
      std::unique_ptr<Message> request(factory.GetPrototype(method.input_type())->New());
      FillWithOddValues(*request, which);
      const grpc::Status status = CallWithBytes(channel, method, request->SerializePartialAsString());
      EXPECT_TRUE(IsOrderly(status)) << method.full_name() << " " << which << ": " << status.error_code()
                                     << " " << status.error_message();
    });
  }
  ExpectServed();
}

TEST_F(HostileCalls, InvalidMessageBytes_AreRefusedByEveryMethod) {
  std::mt19937_64 random(11);
  ForEveryMethod([&](const auto& channel, const MethodDescriptor& method) {
    std::string bytes = "\x0f";  // a wire type that does not exist
    for (int i = 0; i < 200; ++i) bytes.push_back(static_cast<char>(random()));
    EXPECT_FALSE(CallWithBytes(channel, method, bytes).ok()) << method.full_name();
  });
  ExpectServed();
}

}  // namespace
}  // namespace tensorcast::testing
