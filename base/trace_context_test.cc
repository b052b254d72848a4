#include "base/trace_context.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tensorcast::trace_context_test {
namespace {

constexpr char kTraceparent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContext, FromTraceparent_ReadsAllFields) {
  const auto context = TraceContext::FromTraceparent(kTraceparent, "vendor=value");
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->TraceIdHex(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(context->SpanIdHex(), "b7ad6b7169203331");
  EXPECT_EQ(context->trace_id[1], 0xf7);
  EXPECT_TRUE(context->IsSampled());
  EXPECT_EQ(context->trace_state, "vendor=value");
}

TEST(TraceContext, Traceparent_RoundTrips) {
  EXPECT_EQ(TraceContext::FromTraceparent(kTraceparent)->ToTraceparent(), kTraceparent);
  const std::string unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
  EXPECT_EQ(TraceContext::FromTraceparent(unsampled)->ToTraceparent(), unsampled);
  EXPECT_FALSE(TraceContext::FromTraceparent(unsampled)->IsSampled());
}

TEST(TraceContext, UnknownTraceFlags_AreDropped) {
  const auto context =
      TraceContext::FromTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff");
  ASSERT_TRUE(context.has_value());
  EXPECT_TRUE(context->ToTraceparent().ends_with("-03"));
  TraceContext made = *context;
  made.flags = 0xfd;
  EXPECT_TRUE(made.ToTraceparent().ends_with("-01"));
}

TEST(TraceContext, LaterTraceparentVersion_IsReadByItsFirstFourFields) {
  for (const std::string text : {"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                 "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more-to-come",
                                 "fe-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-"}) {
    const auto context = TraceContext::FromTraceparent(text);
    ASSERT_TRUE(context.has_value()) << text;
    EXPECT_EQ(context->ToTraceparent(), kTraceparent) << "and is sent on as version 00";
  }
}

TEST(TraceContext, MalformedTraceparent_IsRejected) {
  for (const std::string text : {
           "",
           "00",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",       // no flags
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",     // short flags
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-011",   // longer than version 00
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",  // version 00 has no fifth field
           "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",   // no dash before the rest
           "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",    // the forbidden version
           "0g-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",    // not hex
           "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",    // upper case
           "00-0af7651916cd43dd8448eb211c80319c-B7AD6B7169203331-01",    //
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0A",    //
           "00-0af7651916cd43dd8448eb211c80319z-b7ad6b7169203331-01",    //
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b71692033 1-01",    //
           "00-00000000000000000000000000000000-b7ad6b7169203331-01",    // zero trace id
           "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",    // zero span id
           "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",    // wrong separators
           "00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01",    //
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331_01",    //
           " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",   // leading space
       }) {
    EXPECT_FALSE(TraceContext::FromTraceparent(text).has_value()) << text;
  }
}

TEST(TraceContext, InvalidTraceState_IsDroppedAndTraceKept) {
  EXPECT_EQ(TraceContext::FromTraceparent(kTraceparent, std::string(512, 'a'))->trace_state.size(), 512u);
  EXPECT_EQ(TraceContext::FromTraceparent(kTraceparent, std::string(513, 'a'))->trace_state, "");
  EXPECT_EQ(TraceContext::FromTraceparent(kTraceparent, "a=b\nc=d")->trace_state, "");
  EXPECT_EQ(TraceContext::FromTraceparent(kTraceparent, "a=\xc3\xa9")->trace_state, "");
}

TEST(TraceContext, TraceContextWithoutIds_IsInvalid) {
  const TraceContext none;
  EXPECT_FALSE(none.IsValid());
  EXPECT_EQ(none.ToTraceparent(), "");
  EXPECT_EQ(none.NewChild(), none);
}

TEST(TraceContext, NewRoots_AreSampledAndUnique) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    const TraceContext root = TraceContext::NewRoot();
    EXPECT_TRUE(root.IsValid());
    EXPECT_TRUE(root.IsSampled());
    EXPECT_TRUE(root.IsUnstarted()) << "no span exists yet";
    ids.insert(root.TraceIdHex());
  }
  EXPECT_EQ(ids.size(), 100u);
}

TEST(TraceContext, UnstartedRoot_StaysUnstartedAcrossTraceparent) {
  const TraceContext root = TraceContext::NewRoot();
  const auto received = TraceContext::FromTraceparent(root.ToTraceparent(), root.trace_state);
  ASSERT_TRUE(received.has_value());
  EXPECT_TRUE(received->IsUnstarted());
  EXPECT_EQ(received->trace_id, root.trace_id);
  EXPECT_FALSE(TraceContext::FromTraceparent(root.ToTraceparent())->IsUnstarted());
  EXPECT_FALSE(
      TraceContext::FromTraceparent(root.ToTraceparent(), "tensorcast=unstartedness")->IsUnstarted());
}

TEST(TraceContext, NewChild_KeepsTraceAndChangesSpan) {
  const auto parent = TraceContext::FromTraceparent(kTraceparent, "vendor=value");
  const TraceContext child = parent->NewChild();
  EXPECT_TRUE(child.IsValid());
  EXPECT_EQ(child.trace_id, parent->trace_id);
  EXPECT_NE(child.span_id, parent->span_id);
  EXPECT_EQ(child.flags, parent->flags);
  EXPECT_EQ(child.trace_state, parent->trace_state);
}

}  // namespace
}  // namespace tensorcast::trace_context_test
