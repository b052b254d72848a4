#include "core/artifact/tensor_selection.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/artifact/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::tensor_selection_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Bytes of these names and sizes, in chunks of 1 MiB as long as they are few.
std::shared_ptr<const Manifest> ManifestOf(const std::vector<std::pair<std::string, uint64_t>>& tensors) {
  ImageLayout layout;
  for (const auto& [name, bytes] : tensors) {
    layout.tensors.push_back({.name = name, .dtype = DType::kU8, .shape = {bytes}, .nbytes = bytes});
  }
  EXPECT_TRUE(AssignOffsets(layout).ok());
  std::vector<ChunkDigests> digests = testing::NoDigests(layout);
  auto manifest = Manifest::Create(std::move(layout), std::move(digests), {});
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return *manifest;
}

std::vector<std::string> Chosen(const Manifest& manifest, const std::vector<std::string>& patterns) {
  const auto selection = SelectTensors(manifest, patterns);
  std::vector<std::string> names;
  if (!selection.ok()) return {std::string(selection.status().message())};
  for (const uint32_t index : selection->tensors) names.push_back(manifest.layout().tensors[index].name);
  return names;
}

std::vector<uint32_t> Chunks(const Manifest& manifest, const std::vector<std::string>& patterns) {
  const auto selection = SelectTensors(manifest, patterns);
  EXPECT_TRUE(selection.ok()) << selection.status();
  return selection.ok() ? selection->chunks : std::vector<uint32_t>();
}

void ExpectRefused(const Manifest& manifest, const std::vector<std::string>& patterns,
                   const ::testing::Matcher<std::string>& message) {
  const absl::Status status = SelectTensors(manifest, patterns).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), message);
}

TEST(SelectTensors, SelectTensors_MatchesWholeNamesWithShellPatterns) {
  const auto manifest =
      ManifestOf({{"h.0.w", 8}, {"h.1.w", 8}, {"h.10.w", 8}, {"h.1.b", 8}, {"ä/ö", 8}, {"lm_head", 8}});
  EXPECT_THAT(Chosen(*manifest, {"h.1.*"}), ElementsAre("h.1.w", "h.1.b"));
  EXPECT_THAT(Chosen(*manifest, {"h.1*.w"}), ElementsAre("h.1.w", "h.10.w"));
  EXPECT_THAT(Chosen(*manifest, {"*.w", "lm_head"}), ElementsAre("h.0.w", "h.1.w", "h.10.w", "lm_head"));
  EXPECT_THAT(Chosen(*manifest, {"h.?.w"}), ElementsAre("h.0.w", "h.1.w"));
  EXPECT_THAT(Chosen(*manifest, {"h.[1-9]*.w"}), ElementsAre("h.1.w", "h.10.w"));
  EXPECT_THAT(Chosen(*manifest, {"h.[!1-9].?"}), ElementsAre("h.0.w"));
  EXPECT_THAT(Chosen(*manifest, {"h.[^a0].[b]"}), ElementsAre("h.1.b"));
  EXPECT_THAT(Chosen(*manifest, {"?/?"}), ElementsAre("ä/ö"));  // characters, not bytes
  EXPECT_THAT(Chosen(*manifest, {"[ä-ü]*"}), ElementsAre("ä/ö"));
  EXPECT_EQ(Chosen(*manifest, {"*"}).size(), 6u);
  EXPECT_EQ(Chosen(*manifest, {"**", "*?*"}).size(), 6u);
  EXPECT_THAT(Chosen(*manifest, {"*h*d"}), ElementsAre("lm_head"));
}

TEST(SelectTensors, SelectTensorsWithoutPatterns_ChoosesAll) {
  const auto manifest = ManifestOf({{"a", kMiB}, {"b", kMiB}});
  EXPECT_THAT(Chosen(*manifest, {}), ElementsAre("a", "b"));
  EXPECT_THAT(Chunks(*manifest, {}), ElementsAre(0, 1));
}

TEST(SelectTensors, PatternThatIsAName_ChoosesOnlyThatTensor) {
  const auto manifest =
      ManifestOf({{"['w'][0]", 8}, {"w*", 8}, {"wide", 8}, {"[a", 8}, {"x]-y", 8}, {"\\z", 8}});
  EXPECT_THAT(Chosen(*manifest, {"['w'][0]"}), ElementsAre("['w'][0]"));
  EXPECT_THAT(Chosen(*manifest, {"w*"}), ElementsAre("w*"));
  EXPECT_THAT(Chosen(*manifest, {"w[*]"}), ElementsAre("w*"));
  EXPECT_THAT(Chosen(*manifest, {"w?*"}), ElementsAre("w*", "wide"));
  EXPECT_THAT(Chosen(*manifest, {"[a*"}), ElementsAre("[a"));  // no set: it does not end
  EXPECT_THAT(Chosen(*manifest, {"x[]][-z]y"}), ElementsAre("x]-y"));
  EXPECT_THAT(Chosen(*manifest, {"?z"}), ElementsAre("\\z"));
}

TEST(SelectTensors, SelectTensors_ListsEachChunkOfChosenTensorsOnce) {
  const auto manifest = ManifestOf(
      {{"a", kMiB / 2}, {"b", kMiB / 4}, {"c", kMiB}, {"d", 3 * kMiB}, {"e", kMiB / 4}, {"f", 256}});
  ASSERT_EQ(manifest->layout().chunk_count(), 6u);
  EXPECT_THAT(Chunks(*manifest, {"a"}), ElementsAre(0));
  EXPECT_THAT(Chunks(*manifest, {"b", "a"}), ElementsAre(0));  // they share it
  EXPECT_THAT(Chunks(*manifest, {"c"}), ElementsAre(0, 1));
  EXPECT_THAT(Chunks(*manifest, {"c", "d"}), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Chunks(*manifest, {"a", "e"}), ElementsAre(0, 4));
  EXPECT_THAT(Chunks(*manifest, {"f"}), ElementsAre(5));
  const auto selection = SelectTensors(*manifest, std::vector<std::string>{"a", "f", "?"});
  ASSERT_TRUE(selection.ok()) << selection.status();
  EXPECT_EQ(selection->tensor_bytes, 5 * kMiB + 256);
}

TEST(SelectTensors, EmptyTensor_AddsNoChunkUnlessChosenAlone) {
  const auto manifest =
      ManifestOf({{"first", 0}, {"a", kMiB}, {"b", kMiB}, {"middle", 0}, {"c", kMiB}, {"last", 0}});
  EXPECT_THAT(Chunks(*manifest, {"middle", "c"}), ElementsAre(2));
  for (const char* name : {"first", "middle", "last"}) {
    EXPECT_THAT(Chosen(*manifest, {name}), ElementsAre(name));
    EXPECT_THAT(Chunks(*manifest, {name}), ElementsAre(0));
  }
  EXPECT_THAT(Chunks(*ManifestOf({{"nothing", 0}}), {"nothing"}), IsEmpty());
}

TEST(SelectTensors, UnmatchedPattern_IsNamedWithNearestTensor) {
  const auto manifest = ManifestOf({{"embed", 8}, {"layers.0.attn", 8}, {"layers.1.attn", 8}, {"norm", 8}});
  ExpectRefused(
      *manifest, {"norm", "layers.1.mlp"},
      AllOf(HasSubstr(manifest->id()), HasSubstr("\"layers.1.mlp\""), HasSubstr("\"layers.1.attn\"")));
  ExpectRefused(*manifest, {"layer.*"}, HasSubstr("\"layers.0.attn\""));
  ExpectRefused(
      *manifest, {"*.attn.q"},
      HasSubstr("the artifact has 4 tensors, and no name equals or matches this text; use another name or "
                "pattern; the nearest name is \"embed\""));
  ExpectRefused(*manifest, {""}, HasSubstr("\"\""));
  ExpectRefused(*manifest, {"Norm"}, HasSubstr("\"Norm\""));
  ExpectRefused(*ManifestOf({}), {"*"}, HasSubstr("the artifact has no tensors"));
}

TEST(SelectTensors, SelectTensors_RefusesTooManyAndTooLongPatterns) {
  const auto manifest = ManifestOf({{"a", 8}});
  EXPECT_THAT(Chosen(*manifest, std::vector<std::string>(kMaxTensorPatterns, "a")), ElementsAre("a"));
  ExpectRefused(*manifest, std::vector<std::string>(kMaxTensorPatterns + 1, "a"), HasSubstr("65537"));
  EXPECT_THAT(Chosen(*manifest, {std::string(kMaxTensorPatternBytes, '*')}), ElementsAre("a"));
  ExpectRefused(*manifest, {std::string(kMaxTensorPatternBytes + 1, '*')}, HasSubstr("4097 bytes"));
  ExpectRefused(*manifest, {"a\xff*"}, HasSubstr("not valid UTF-8"));
}

// A client cannot keep a thread busy for long by a pattern that is made to be slow.
TEST(SelectTensors, SelectTensors_RefusesPatternThatIsSlowToMatch) {
  const auto manifest = ManifestOf({{std::string(1 << 20, 'a'), 8}});
  ExpectRefused(*manifest, {absl::StrCat("*", std::string(4000, 'a'), "b")}, HasSubstr("takes too long"));
}

TEST(SelectTensors, SelectTensors_CountsEachRangeOfASetAsWork) {
  std::vector<std::pair<std::string, uint64_t>> tensors;
  for (int i = 0; i < 100; ++i) tensors.emplace_back(absl::StrCat(std::string(4000, 'a'), i), 1);
  std::string set = "*[";
  for (char c = 'b'; c <= 'z'; ++c) set += std::string(40, c);
  ExpectRefused(*ManifestOf(tensors), {set + "]"}, HasSubstr("takes too long"));
}

TEST(SelectTensors, UnclosedBracket_IsReadOnce) {
  const auto manifest = ManifestOf({{std::string(4000, '[') + "x", 8}, {"y", 8}});
  // Read again for each of its brackets, these would take minutes.
  const std::vector<std::string> patterns(2000, std::string(4000, '[') + "?");
  EXPECT_THAT(Chosen(*manifest, patterns), ElementsAre(manifest->layout().tensors[0].name));
  EXPECT_THAT(Chosen(*ManifestOf({{"[]ab]", 8}, {"ac", 8}}), {"[]a]c"}), ElementsAre("ac"));
}

TEST(SelectTensors, SelectTensors_ChoosesAmong100000Tensors) {
  std::vector<std::pair<std::string, uint64_t>> tensors;
  for (int i = 0; i < 100'000; ++i) {
    tensors.emplace_back(absl::StrCat("model.layers.", i / 100, ".experts.", i % 100, ".weight"), 4096);
  }
  const auto manifest = ManifestOf(tensors);
  // Wildcards of every kind at once, and as many whole names as are taken.
  std::vector<std::string> patterns = {"*.layers.7.*", "*.9[0-4].weight", "model.layers.99?.*"};
  EXPECT_EQ(Chosen(*manifest, patterns).size(), 100u + 10u * 100u + 5u * (1000u - 11u));
  for (size_t i = patterns.size(); i < kMaxTensorPatterns; ++i) patterns.push_back(tensors[i].first);
  EXPECT_GT(Chosen(*manifest, patterns).size(), kMaxTensorPatterns - 3);
}

}  // namespace
}  // namespace tensorcast::tensor_selection_test
