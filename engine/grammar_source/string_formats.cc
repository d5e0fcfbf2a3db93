// The formats of strings, as patterns. Each matches texts of that format alone, not each spelling
// that the format's standard allows.
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar_source/schema_document.h"

namespace polysketch {
namespace {

struct Format {
  std::string_view name;
  std::string pattern;
};

const std::vector<Format>& Formats() {
  static const std::vector<Format> kFormats = [] {
    // Years from 0001; 29 February in leap years alone.
    const std::string year = R"((?:\d{3}[1-9]|\d\d[1-9]0|\d[1-9]00|[1-9]000))";
    const std::string leap =
        R"((?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00))";
    const std::string date =
        "(?:" + year +
        R"(-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))|)" +
        leap + "-02-29)";
    const std::string time =
        R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))";
    const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
    const std::string host = label + R"((?:\.)" + label + ")*";
    const std::string byte = R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
    const std::string group = "[0-9A-Fa-f]{1,4}";
    std::string ipv6 = StrCat("(?:", group, ":){7}", group);
    // One run of groups is left out: `before` groups stand before it, at most six in all.
    for (int before = 0; before <= 6; ++before) {
      const int after = 6 - before;
      ipv6 += "|";
      if (before > 0) ipv6 += StrCat(group, "(?::", group, "){", before - 1, "}");
      ipv6 += "::";
      if (after > 0) ipv6 += StrCat("(?:", group, "(?::", group, "){0,", after - 1, "})?");
    }
    const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
    // Bounded, so that lengths that schemas give beside the format (2,083) follow from it.
    const std::string path = "[A-Za-z0-9._~!$&'()*+,;=:@/-]{0,800}";
    const std::string query = "[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,400}";
    const std::string clock = R"(T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))";
    return std::vector<Format>{
        {"date", date},
        {"date-time", date + "T" + time},
        {"duration", R"(P(?:\d+W|(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)(?:)" + clock +
                         ")?|" + clock + ")"},
        {"email", atom + R"((?:\.)" + atom + ")*@" + host},
        {"hostname", host},
        {"ipv4", byte + R"((?:\.)" + byte + "){3}"},
        {"ipv6", ipv6},
        {"time", time},
        {"uri", "[A-Za-z][A-Za-z0-9+.-]{0,20}://" + label + R"((?:\.)" + label +
                    "){0,4}(?::[0-9]{1,5})?(?:/" + path + R"()?(?:\?)" + query + ")?(?:#" + query +
                    ")?"},
        {"uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
    };
  }();
  return kFormats;
}

// Formats of JSON Schema that have no pattern here.
constexpr std::string_view kOthers[] = {"idn-email",     "idn-hostname",          "iri",
                                        "iri-reference", "json-pointer",          "regex",
                                        "uri-reference", "relative-json-pointer", "uri-template"};

}  // namespace

Result<const Pattern*> SchemaDocument::FormatOf(const JsonValue& schema,
                                                const std::string& format) {
  std::string known;
  for (const Format& one : Formats()) {
    if (one.name == format) return PatternOf(schema, "format", StrCat("^(?:", one.pattern, ")$"));
    known += known.empty() ? "" : ", ";
    known += one.name;
  }
  const bool defined =
      std::find(std::begin(kOthers), std::end(kOthers), format) != std::end(kOthers);
  if (defined) return Error(schema, "format", StrCat("expected ", known, ", found ", format));
  return nullptr;
}

}  // namespace polysketch
