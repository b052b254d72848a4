#include "base/request_context.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "base/steady_time.h"

namespace tensorcast::request_context_test {
namespace {

TEST(Cancellation, Cancel_RunsCallbacksOnceInOrder) {
  const Cancellation cancellation;
  std::vector<int> order;
  auto first = cancellation.OnCancel([&] { order.push_back(1); });
  auto second = cancellation.OnCancel([&] { order.push_back(2); });
  EXPECT_FALSE(cancellation.IsCancelled());
  cancellation.Cancel();
  cancellation.Cancel();
  EXPECT_TRUE(cancellation.IsCancelled());
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(Cancellation, CancellationCopies_ShareState) {
  const Cancellation cancellation;
  const Cancellation copy = cancellation;
  bool called = false;
  auto registration = copy.OnCancel([&] { called = true; });
  cancellation.Cancel();
  EXPECT_TRUE(copy.IsCancelled());
  EXPECT_TRUE(called);
}

TEST(Cancellation, OnCancelAfterCancel_RunsCallbackAtOnce) {
  const Cancellation cancellation;
  cancellation.Cancel();
  bool called = false;
  auto registration = cancellation.OnCancel([&] { called = true; });
  EXPECT_TRUE(called);
}

TEST(Cancellation, UnregisteredCallback_IsNeitherRunNorKept) {
  const Cancellation cancellation;
  auto captured = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = captured;
  {
    auto registration = cancellation.OnCancel([held = std::move(captured)] { ++*held; });
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
  cancellation.Cancel();
}

TEST(Cancellation, MovedRegistration_StaysRegistered) {
  const Cancellation cancellation;
  int first_calls = 0;
  int second_calls = 0;
  auto first = cancellation.OnCancel([&] { ++first_calls; });
  Cancellation::Registration second = cancellation.OnCancel([&] { ++second_calls; });
  second = std::move(first);
  cancellation.Cancel();
  EXPECT_EQ(first_calls, 1);
  EXPECT_EQ(second_calls, 0) << "the registration that was assigned over is gone";
}

TEST(Cancellation, DestroyedRegistration_WaitsForItsRunningCallback) {
  const Cancellation cancellation;
  absl::Notification running;
  absl::Notification may_end;
  std::atomic<bool> ended = false;
  std::optional<Cancellation::Registration> registration = cancellation.OnCancel([&] {
    running.Notify();
    may_end.WaitForNotification();
    ended = true;
  });
  std::thread canceller([&] { cancellation.Cancel(); });
  running.WaitForNotification();
  std::thread releaser([&] { may_end.Notify(); });
  registration.reset();
  EXPECT_TRUE(ended);
  canceller.join();
  releaser.join();
}

TEST(Cancellation, DestroyedRegistration_DoesNotWaitForOtherCallbacks) {
  const Cancellation cancellation;
  absl::Notification running;
  absl::Notification may_end;
  auto blocked = cancellation.OnCancel([&] {
    running.Notify();
    may_end.WaitForNotification();
  });
  bool other_called = false;
  std::optional<Cancellation::Registration> other = cancellation.OnCancel([&] { other_called = true; });
  std::thread canceller([&] { cancellation.Cancel(); });
  running.WaitForNotification();
  other.reset();  // would hang here
  may_end.Notify();
  canceller.join();
  EXPECT_FALSE(other_called);
}

TEST(Cancellation, Callback_MayDestroyItsOwnAndOtherRegistrations) {
  const Cancellation cancellation;
  std::optional<Cancellation::Registration> own;
  std::optional<Cancellation::Registration> later;
  bool later_called = false;
  int calls = 0;
  own = cancellation.OnCancel([&] {
    own.reset();
    later.reset();
    ++calls;
  });
  later = cancellation.OnCancel([&] { later_called = true; });
  cancellation.Cancel();
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(later_called);
}

TEST(Cancellation, Callback_MayRegisterAndCancelAgain) {
  const Cancellation cancellation;
  bool inner_called = false;
  auto registration = cancellation.OnCancel([&] {
    cancellation.Cancel();
    auto inner = cancellation.OnCancel([&] { inner_called = true; });
  });
  cancellation.Cancel();
  EXPECT_TRUE(inner_called);
}

TEST(Cancellation, Registration_MayOutliveCancellation) {
  Cancellation::Registration registration;
  {
    const Cancellation cancellation;
    registration = cancellation.OnCancel([] {});
  }
}

// Each callback runs, or its registration is gone before it could; what the callback touches is freed right
// after.
TEST(Cancellation, ConcurrentRegistrationAndCancel_AreSafe) {
  for (int round = 0; round < 200; ++round) {
    const Cancellation cancellation;
    std::thread registrar([&] {
      for (int i = 0; i < 20; ++i) {
        auto calls = std::make_unique<int>(0);
        auto registration = cancellation.OnCancel([pointer = calls.get()] { ++*pointer; });
        registration = {};
        EXPECT_LE(*calls, 1);
      }
    });
    std::thread canceller([&] { cancellation.Cancel(); });
    registrar.join();
    canceller.join();
  }
}

TEST(RequestContext, ContextPastDeadline_IsDeadlineExceeded) {
  RequestContext context;
  EXPECT_TRUE(context.Check("work").ok());
  context.deadline = SteadyNow() + absl::Hours(1);
  EXPECT_TRUE(context.Check("work").ok());
  context.deadline = SteadyNow() - absl::Seconds(2);
  const absl::Status status = context.Check("copying chunk 3");
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(absl::StrContains(status.message(), "copying chunk 3: the deadline passed 2")) << status;
  // A wait that ends at its deadline is late by less than is worth a number.
  context.deadline = SteadyNow();
  EXPECT_FALSE(absl::StrContains(context.Check("work").message(), "passed 0")) << context.Check("work");
  context.deadline = SteadyTime::InfinitePast();
  EXPECT_EQ(context.Check("work").code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(RequestContext, CancelledContextPastDeadline_IsCancelled) {
  RequestContext context;
  context.deadline = SteadyNow() - absl::Seconds(1);
  context.cancellation.Cancel();
  const absl::Status status = context.Check("copying chunk 3");
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(absl::StrContains(status.message(), "copying chunk 3")) << status;
}

TEST(RequestContext, BackgroundContext_HasTraceIdAndDeadline) {
  const RequestContext forever = RequestContext::Background();
  EXPECT_EQ(forever.deadline, SteadyTime::InfiniteFuture());
  EXPECT_TRUE(forever.trace.IsValid());
  EXPECT_FALSE(forever.request_id.empty());
  const RequestContext bounded = RequestContext::Background(absl::Hours(1));
  EXPECT_GT(bounded.deadline, SteadyNow());
  EXPECT_LE(bounded.deadline, SteadyNow() + absl::Hours(1));
  EXPECT_NE(bounded.request_id, forever.request_id);
}

TEST(RequestContext, ChildContext_SharesParentsDeadlineIdAndCancellation) {
  const RequestContext parent = RequestContext::Background(absl::Hours(1));
  const RequestContext child = parent.Child();
  EXPECT_EQ(child.deadline, parent.deadline);
  EXPECT_EQ(child.request_id, parent.request_id);
  EXPECT_EQ(child.trace, parent.trace);
  parent.cancellation.Cancel();
  EXPECT_TRUE(child.cancellation.IsCancelled());
}

}  // namespace
}  // namespace tensorcast::request_context_test
