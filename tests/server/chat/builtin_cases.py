"""Templates of every builtin, method and operator with each of its arguments: written ones, and random ones of a seed."""

import random

VALUES = {
    "s": "Hello World",
    "t": "  padded\ttext \n",
    "u": "Zwölf Boxkämpfer, ÉCOLE straße 漢字 🙂",
    "e": "",
    "m": "one\ntwo\r\nthree\n\nfour\n",
    "d": {"b": 2, "A": 10, "c": -3, "a": 1},
    "w": {"y": "Beta", "x": "alpha", "z": "Gamma"},
    "l": [3, 1, 2, 10, 1],
    "v": ["b", "A", "a", "B", "c"],
    "o": [{"n": "Ann", "g": {"k": 2}}, {"n": "bob", "g": {"k": 1}}, {"n": "Cid"}],
    "i": 42,
    "j": -7,
    "f": 3.14159,
    "h": 2.5,
    "y": True,
    "n": None,
    "x": [[1, 2], ["a", None], []],
    "q": "42.9",
    "r": "0x1F",
    "k": "a,b,,c",
    "p": "%s-%05.2f|%d%%",
}

# After each value. "@" is the value.
FILTERS = """
@|abs
@|batch(2)|list @|batch(2,'-')|list @|batch(linecount=3, fill_with=0)|list
@|capitalize
@|center(20) @|center @|center(width=5)
@|default('D') @|default('D',true) @|d('D', boolean=True) @|default(default_value='E') @|d
@|dictsort @|dictsort(true) @|dictsort(false,'value') @|dictsort(by='value') @|dictsort(reverse=true) @|dictsort(case_sensitive=true, by='key', reverse=true) @|dictsort(by='other')
@|first @|last
@|float @|float(1.5) @|float(default='z')
@|format('a', 2.345, 7) @|format(1) @|format(a=1)
@|indent @|indent(2) @|indent(2,true) @|indent(2,true,true) @|indent(width='> ', first=true) @|indent(blank=true) @|indent(width=0)
@|int @|int(5) @|int(5,16) @|int(base=8) @|int(default=-1, base=2) @|int(base=0) @|int('no',36)
@|items|list
@|join @|join(',') @|join(', ', attribute='n') @|join(d='-') @|join(attribute='g.k') @|join(1)
@|length @|count
@|list
@|lower @|upper @|title @|string @|safe
@|map('upper')|list @|map('string')|map('length')|list @|map(attribute='n')|list @|map(attribute='n',default='D')|list @|map(attribute='g.k',default=0)|list @|map('replace','a','o')|list @|map('default','x')|list @|map(attribute=0)|list
@|max @|min @|max(true) @|min(case_sensitive=true) @|max(attribute='n') @|min(attribute='g.k')
@|reject|list @|reject('none')|list @|reject('equalto',1)|list @|rejectattr('g')|list @|rejectattr('n','equalto','Ann')|list
@|replace('l','L') @|replace('l','L',1) @|replace('l','L',count=2) @|replace('','-') @|replace('','-',2) @|replace(old='o',new='0') @|replace(1,'x') @|replace('l','L',none)
@|reverse|list @|reverse
@|round @|round(2) @|round(1,'floor') @|round(method='ceil') @|round(-1) @|round(precision=2,method='common') @|round(0,'other') @|round(-1,'ceil')
@|select|list @|select('string')|list @|select('gt',1)|list @|select('in',[1,2])|list @|select('divisibleby',2)|list @|select('nosuch')|list
@|selectattr('g')|list @|selectattr('n','equalto','Ann')|list @|selectattr('n','string')|list @|selectattr('g.k','defined')|list @|selectattr('n','in',['bob'])|list
@|slice(2)|list @|slice(2,'-')|list @|slice(slices=3)|list
@|sort @|sort(true) @|sort(reverse=true,case_sensitive=true) @|sort(case_sensitive=true) @|sort(attribute='n') @|sort(attribute='n,g.k') @|sort(false,false,'g.k')
@|sum @|sum(start=5) @|sum('k') @|sum(attribute='g.k',start=1)
@|tojson @|tojson(indent=2) @|tojson(true) @|tojson(ensure_ascii=true,indent=0) @|tojson(sort_keys=true) @|tojson(separators=(',',':')) @|tojson(false,4,none,true) @|tojson(indent=none)
@|trim @|trim('H') @|trim(chars=' d') @|trim(none)
@|truncate(5) @|truncate(5,true) @|truncate(5,true,'') @|truncate(6,false,'…',0) @|truncate(length=4,leeway=0) @|truncate
@|unique|list @|unique(true)|list @|unique(case_sensitive=true)|list @|unique(attribute='n')|list
@|trim|upper|replace('H','J') @|list|first @|list|last @|length is divisibleby 2
@|upper(1) @|lower(x=1) @|length(2) @|trim('a','b') @|join(',',none,1) @|join(sep=',') @|sort(key=1) @|tojson(pretty=1) @|replace('a') @|items(1)
"""

METHODS = """
capitalize() center(21) center(21,'*') center(4) count('l') count('l',4) count('l',1,5) count('') endswith('d') endswith('o',0,5) endswith(('x','d')) endswith('')
find('o') find('o',5) find('o',5,7) find('') find('zz') find('o',-4) index('o') index('zz') isalnum() isalpha() isascii() isdecimal() isdigit() islower() isnumeric()
isspace() istitle() isupper() join(['a','b']) join([1]) ljust(14) ljust(14,'.') lower() lstrip() lstrip('H') lstrip('eH ') partition(' ') partition('zz') partition('')
removeprefix('He') removesuffix('ld') replace('l','L') replace('l','L',1) replace('','-') replace('o','') rfind('o') rfind('o',0,5) rfind('l',2,4) rindex('o') rjust(14) rjust(14,'_')
rpartition('o') rpartition('zz') rsplit() rsplit('o') rsplit('o',1) rsplit(none,1) rsplit(sep='l',maxsplit=1) rstrip() rstrip('dl') split() split('o') split('o',1) split(none,1)
split(sep='l',maxsplit=1) split('') split(maxsplit=1) split(',') splitlines() splitlines(true) startswith('H') startswith('W',6) startswith('e',1,3) startswith(('x','H')) startswith(['H'])
strip() strip('Hd') strip(none) swapcase() title() upper() zfill(15) zfill(2) get('a') get('zz') get('zz',5) get('zz',default=5) items() keys() values() copy() index(1) count(1) index(1,2)
append(1) pop('a') nosuch() upper(1) strip('a','b') split('a',1,2) get() items(1) startswith() replace('l')
"""

WRITTEN = r"""
{{ '\101\x41\u0041\U00000041' }}|{{ '\t\n\\\'\"' }}|{{ '\q\8' }}|{{ '\0' == '\x00' }}|{{ '\777' }}|{{ 'a\
b' }}
{{ "\18" }}{{ "\1234" }}
{{ '\x4' }}
{{ 'a' 'b' "c" }}
{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1e3 }} {{ 1.5e-3 }} {{ 1E+2 }} {{ 00 }} {{ 1_0.5 }} {{ 0x_ff }}
{{ 007 }}
{{ 1.5 }} {{ 1e16 }} {{ 1e15 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 100000000000000000000.0 }} {{ -0.0 }} {{ 5 / 2 }} {{ 4 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}
{{ 1 if true }}|{{ 1 if false }}|{{ 1 if false else 2 if false else 3 }}
{{ [1, 'a', none, true, 2.0, (1, 2), (3,), {'a': [1]}] }}
{{ "it's" }} {{ ["it's", 'say "x"', 'both \' "', '\\', '\n\t'] }}
{{ (1, 2) + (3,) }} {{ [1] + [2] }} {{ [0] * 3 }} {{ 'ab' * 2 }} {{ 2 * 'ab' }} {{ (1, 2) == [1, 2] }}
{{ range(5) }} {{ range(1, 7, 2)|list }} {{ range(3, 0, -1)|list }} {{ range(3)[1] }} {{ range(5)|length }} {{ range(0)|list }} {{ range(3) is sequence }}
{{ range(100001)|length }}
{{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ dict([('p', 1), ('q', 2)]) }} {{ dict(d).a }}
{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}
{% for a in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.cycle('x', 'y') }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for a in l if a > 1 %}{{ a }}{{ loop.index }}{% else %}none{% endfor %}|{% for a in [] %}{{ a }}{% else %}none{% endfor %}
{% for a in l %}{% if a == 2 %}{% break %}{% endif %}{% if a == 1 %}{% continue %}{% endif %}{{ a }}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'ab' %}{{ c }}.{% endfor %}
{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}{{ b }};{% endfor %}
{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}
{% for a in 1, 2, 3 %}{{ a }}{% endfor %}
{% for a in l %}{% for b in v %}{{ loop.index }}{{ loop.depth }}{% endfor %}{% endfor %}
{% for a in none %}{% endfor %}
{% for a in missing %}x{% else %}empty{% endfor %}
{% set z = 1 %}{% for a in l %}{% set z = a %}{% endfor %}{{ z }}{% if true %}{% set z = 5 %}{% endif %}{{ z }}
{% for a in [1, 2] %}{% if a == 2 %}{{ z is defined }}{% endif %}{% set z = a %}{% endfor %}
{% for a in [] %}{% else %}{% set z = 3 %}{% endfor %}{{ z is defined }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}block {{ a }}{% endset %}{{ c }}{% set c | upper %}block{% endset %}{{ c }}
{% set a, b = [1] %}
{% macro f(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=4, a=0) }}{{ f() }}{{ f(1, c='z') }}{{ f.name }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, z=2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}
{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}
{% macro f() %}{{ z }}{% endmacro %}{% set z = 1 %}{{ f() }}{% set z = 2 %}{{ f() }}{% for z in [9] %}{{ f() }}{% endfor %}
{% set m = namespace(g=1) %}{% macro f() %}M{% endmacro %}{% set m.g = f %}{{ m.g() }}
{% for x in l %}{% macro f() %}{{ x }}{{ y }}{% endmacro %}{% set y = x * 2 %}{{ f() }},{% endfor %}
{% macro f(a) %}{% macro g(b) %}{{ a }}{{ b }}{% endmacro %}{% if a > 0 %}{{ f(a - 1) }}{% endif %}{{ g(1) }}{% endmacro %}{{ f(3) }}
{% with b = 5 %}{% macro f() %}{{ b }}{% endmacro %}{{ f() }}{% endwith %}{% macro f(g) %}{{ g() }}{% endmacro %}{% macro g() %}G{% endmacro %}{{ f(g) }}
{% for a in l %}{% break %}{% else %}1{% endfor %}{% for a in l %}{% continue %}{% else %}2{% endfor %}
{% for a in l %}{% if a == 1 %}{% break %}{% endif %}{% else %}1{% endfor %}{% for a in l %}{% if a == 3 %}{% continue %}{% endif %}{% break %}{% else %}2{% endfor %}
{% for b in l %}{% for a in l %}{% break %}{% else %}{% if b == 2 %}{% break %}{% endif %}{{ b }}{% endfor %}{% endfor %}
{{ ['\x00\x1f\x7f\x80\x9f', '\xa0\xad\u0378\u200b\u2028\u3000', '\ud7ff\ue000\ufeff\uffff', '\U0001f600\U000e0001\U0010ffff'] }}
{% with a = 1, b = 2 %}{{ a + b }}{% set c = 3 %}{% endwith %}{{ a is defined }}{{ c is defined }}
{% filter upper %}abc {{ s }}{% endfilter %}|{% filter replace('a', 'b')|upper %}aca{% endfilter %}
{% generation %}text{% set g = 1 %}{% endgeneration %}{{ g is defined }}
{% raw %}{{ not }} {% tags %}{% endraw %}|{%- raw -%}  x  {%- endraw -%}  y
a {#- comment -#} b {# c #}  d {##} e {#-#} f
  {% if true %}
  x
  {%- endif +%}
  y {%+ if true %}z{% endif %}
{{- 1 -}}  a {{+ 2 }} b
{{ x.y.z }}
{{ missing }}|{{ missing is defined }}|{{ missing|default('d') }}|{{ missing == missing2 }}|{{ [missing] }}|{{ missing|length }}|{{ missing|list }}|{{ missing ~ 'a' }}|{{ not missing }}
{{ missing.a }}
{{ missing + 1 }}
{{ missing < 1 }}
{{ missing() }}
{{ 'a' in missing }} {{ missing in l }}
{{ missing in 'abc' }}
{{ missing|int }}
{{ missing|upper }}|{{ missing|trim }}|{{ missing|join(',') }}|{{ missing|select|list }}|{{ missing|sum }}|{{ missing|items|list }}|{{ missing|first is defined }}
{{ missing|tojson }}
{{ raise_exception('stop') }}
{{ s|nosuch }}
{% if false %}{{ s|nosuch }}{% endif %}ok{{ 1 if true else s|nosuch }}
{{ s is nosuch }}
{% if s is nosuch %}{% endif %}
{{ o|selectattr('g')|map(attribute='n')|join(',') }} {% set z = o|selectattr('nosuch') %}{% if z %}true{% endif %} {{ z|list }} {{ z|list }}
{% set z = l|map('string') %}{{ z|first }}{{ z|join }}{{ z|join }}
{{ l|map('string')|length }}
{{ (l|map('string'))[0] is defined }} {{ l|map('string') is iterable }} {{ l|map('string') is sequence }} {{ d.items() is sequence }} {{ d.keys()|length }} {{ d.items()|list }} {{ d.keys() }} {{ d.values() }} {{ d.items() }}
{{ {'items': 1}.items is callable }} {{ {'items': 1}['items'] }} {{ {'a': 1}['items'] is callable }} {{ {'get': 1}.get('get') }} {{ {'update': 3}.update is defined }} {{ {'a': 1}.b is defined }}
{{ {'a': 1}.b.c }}
{{ 'abc'.nosuch is defined }} {{ 'abc'['title'] is callable }} {{ 'abc'.text is defined }} 
{{ [1, 2].append(3) }}
{{ '%s and %s' % ('a', 1) }} {{ '%5.1f|%-5s|%05d|%x|%+d' % (3.14159, 'ab', 42, 255, 3) }} {{ '%s' % 'x' }} {{ '%(a)s' % {'a': 1} }} {{ '%r' % ('q',) }} {{ '%s' % [1] }} {{ '%5s|%.2s' % ('é', 'abc') }}
{{ '%d' % 'x' }}
{{ '%s %s' % 'x' }}
{{ '%s' % ('a', 'b') }}
{{ 'x' < 'y' < 'z' }} {{ 1 < 2 > 1 }} {{ 3 > 2 > 2 }} {{ [1, 2] < [1, 3] }} {{ (1, 'a') < (1, 'b') }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ true + 1 }} {{ true == 1 }} {{ 1 == 1.0 }} {{ 'a' == 1 }} {{ none == false }} {{ true is integer }} {{ 1 is boolean }} {{ 1.0 is integer }} {{ true is number }}
{{ 'A' is upper }} {{ 'a' is lower }} {{ 'Ab' is upper }} {{ 1 is upper }}
{{ 'upper' is filter }} {{ 'nosuch' is filter }} {{ 'odd' is test }}
{{ {1: 'a'} }}
{{ {'a': 1, 'a': 2} }} {{ {} }} {{ [] }} {{ () }}
{{ "é"|tojson(true) }} {{ "\x7f"|tojson(true) }} {{ "🙂"|tojson(ensure_ascii=true) }} {{ "</script>&'"|tojson }} {{ [1.0, 1e20, true, none]|tojson }} {{ (1, 2)|tojson }} {{ {'b': {'d': 1, 'c': []}, 'a': {}}|tojson(indent=2, sort_keys=true) }} {{ []|tojson(indent=2) }}
{{ d.items()|tojson }}
{{ range(2)|tojson }}
{{ (l|map('string'))|tojson }}
{{ strftime_now('%Y') == strftime_now('%Y') }}
{{ strftime_now() }}
{{ 'a-b c(d)e[f]g{h}i<j>k d\'e'|title }} {{ 'a-b c(d)e[f] o\'neil x2y'.title() }} {{ 'hELLO wORLD'|capitalize }} {{ 'ÉCOLE'|lower }} {{ 'straße'|upper }} {{ 'éa'|capitalize }} {{ 'ärger öl'|title }} {{ 'Привет'|upper }}
{{ '12'|int + 1 }} {{ ' 12 '|int }} {{ '1_000'|int }} {{ '+5'|int }} {{ '-5'|int }} {{ '1e3'|int }} {{ 'ff'|int(base=16) }} {{ '0b11'|int(base=0) }} {{ '0o17'|int(0, 8) }} {{ '0x1f'|int(0, 16) }} {{ '010'|int(7, 0) }} {{ 'zz'|int(base=36) }} {{ 3.9|int }} {{ -3.9|int }} {{ true|int }} {{ none|int }} {{ 'inf'|int(1) }} {{ []|int(3) }}
{{ '1.5'|float }} {{ 'inf'|float }} {{ '-inf'|float }} {{ 'nan'|float }} {{ '1_0.5'|float }} {{ '+1.5'|float }} {{ ' 2 '|float }} {{ '1e400'|float }} {{ '.5'|float }} {{ '5.'|float }} {{ 'x'|float }} {{ true|float }}
{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 1.005|round(2) }} {{ 42|round }} {{ 45|round(-1) }} {{ 55|round(-1) }} {{ 42.55|round(1, 'floor') }} {{ 42.55|round(1, 'ceil') }} {{ -2.5|round }} {{ 42|round(0, 'floor') }} {{ true|round }}
{{ 'x'|round }}
{{ 'ab'|list }} {{ d|list }} {{ 'ab'|reverse }} {{ d|reverse|list }} {{ l|reverse|first }} {{ 'abc'|first }} {{ 'abc'|last }} {{ ''|first is defined }} {{ d|first }} {{ d|last }}
{{ [1, 1.0, true, '1', none, none]|unique|list }} {{ ['a', 'A', 'b']|unique|list }} {{ [(1, 2), (1, 2)]|unique|list }}
{{ [[1]]|unique|list }}
{{ [3, 'a']|sort }}
{{ [none, 1]|max }}
{{ ['b', 'A']|sort }} {{ ['b', 'A']|sort(case_sensitive=true) }} {{ ['a', 'B']|max }} {{ []|max is defined }} {{ [[2, 1], [1, 5]]|sort }} {{ {'b': 1, 'a': 2}|sort }}
{{ l|join(', ') }} {{ l|join('-', attribute='x') }} {{ 'abc'|join('.') }} {{ d|join(',') }} {{ [none, true, 1.5, 'x', [1]]|join('|') }}
{{ s|indent(width=2, first=true) }}{{ m|indent }}{{ m|indent(3, blank=true) }}{{ ''|indent(2, true) }}
{{ 'a.b.c'.split('.')[-1] }} {{ 'a b  c '.split(' ') }} {{ ' a b  c '.split() }} {{ ' a b c '.rsplit(none, 1) }} {{ 'aaa'.rsplit('aa', 1) }} {{ 'aaa'.split('aa') }} {{ 'a\tb'.split('\t') }} {{ ''.split() }} {{ ''.split(',') }}
{{ 'héllo'.find('l') }} {{ 'héllo'[1] }} {{ 'héllo'[1:3] }} {{ 'héllo'[::-1] }} {{ '🙂🙂a'.index('a') }} {{ 'héllo'|length }}
{{ s is string and l is not string and d is mapping and l is sequence and l is iterable }}
{{ loop is defined }} {{ messages is defined }} {{ caller is defined }}
{{ (1)|string + 'a' }} {{ 1|string ~ 2 }} {{ -1|abs }} {{ -(1|abs) }} {{ 'a'|upper|lower }} {{ ('a' ~ 'b')|upper }} {{ 'a' ~ 'b'|upper }} {{ 1 + 2|string|length }}
{{ s|trim|length > 3 and not e }} {{ e or 'x' }} {{ e and 'x' }} {{ s and 'x' }}
{{ x }} {{ y }} {{ n }} {{ d }} {{ w }} {{ o }} {{ f }} {{ t }}
"""


def table(text):
    """The cases of a table, with spaces between."""
    return [part for line in text.strip().split("\n") for part in split_cases(line)]


def split_cases(line):
    parts, depth, quote, begin = [], 0, "", 0
    for i, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == " " and depth == 0:
            parts.append(line[begin:i])
            begin = i + 1
    return parts + [line[begin:]]


OPERATOR_CASES = [case.strip() for case in """
@[0]; @[-1]; @[99]; @[1:3]; @[::-1]; @[::2]; @[-3:]; @[:-1]; @[5:1:-2]; @['a']; @.a; @.n; @['items'] is callable; @.items is callable; @.keys()|list; @.get is callable
@.upper is callable; @['upper'] is callable; @.update is defined; @.append is defined; @.count is defined; @[none] is defined; @ + @; @ + 1; @ + 'x'; @ ~ 1; @ ~ @; @ - 1; @ * 2; 2 * @
@ / 2; @ // 2; @ % 3; @ ** 2; -@; +@; not @; 1 - @; 7 // @; 7 % @; 2 ** @; @ % 5; @ == @; @ != 1; @ < 10; @ >= 3; 1 < @ < 50; 1 < @ > 3 == 3; @ in [42,'a',none]; 1 in @; 'a' in @
@ in 'Hello World'; @ not in [1]; @ < @; @ <= 'b'; @ if @ else 'no'; (@ if false); @ and 1; @ or 1; (@, 1); [@]; {'k': @}; (@,); @ is defined and @; @ is not none; not @ is none
@|length if @ is string else 0
""".replace("\n", ";").split(";") if case.strip()]


def table_cases():
    """Every filter, test, method and operator, with each of its arguments, on every value."""
    cases = []
    for value in VALUES:
        cases += ["{{ " + case.replace("@", value) + " }}" for case in OPERATOR_CASES]
        cases += ["{{ " + case.replace("@", value) + " }}" for case in table(FILTERS)]
        cases += ["{{ " + value + "." + method + " }}" for method in table(METHODS)]
        for test in TEST_CASES:
            cases.append("{{ " + value + " is " + test + " }}")
    return cases + [case for case in WRITTEN.strip("\n").split("\n") if case] + MULTILINE


TEST_CASES = [case.strip() for case in """
boolean; callable; defined; divisibleby(2); divisibleby(num=3); eq(42); equalto('Hello World'); even; false; filter; float; ge(2); greaterthan(1); gt(1); in([1,2,42]); in('Hello World!')
integer; iterable; le(2); lessthan(3); lower; lt(50); mapping; ne(1); none; number; odd; sameas(none); sameas(true); sequence; string; test; true; undefined; upper; divisibleby 3; in [42]
sameas none; eq 42; divisibleby(0); defined(1); in(1); eq; string(2); not none; not in [1]
""".replace("\n", ";").split(";") if case.strip()]

MULTILINE = [
    "  {% if true %}\n  x\n  {%- endif +%}\n  y {%+ if true %}z{% endif %}\n",
    "a\n  {#- c -#}\n b\n  {# d #}\n e\n",
    "{% for a in l %}\n  {{ a }}\n{% endfor %}\nend\n\n",
    "\r\n{% set x = 1 %}\r\n{{ x }}\r\n",
    "{%- for a in l -%}\n  {{- a }},\n{%- endfor %}\n",
    "{{ 'a\\\nb' }}",
    "{{\n s\n}}\n\n{{ s -}}\n\n x",
    "{% raw %}\n{{ x }}\n{% endraw %}\nend",
    "   {% raw %}x{% endraw %}   \n y",
    "x {%- if true %} a {% else -%} b {% endif -%} c",
]

ARGUMENTS = ["1", "2", "0", "-1", "'a'", "'l'", "''", "none", "true", "false", "'n'", "[1, 2]", "('a', 'l')", "3.5", "'value'", "'floor'", "missing", "{'a': 1}", "'upper'", "'string'", "16"]
NAMES = {
    "batch": ["linecount", "fill_with"], "center": ["width"], "default": ["default_value", "boolean"], "dictsort": ["case_sensitive", "by", "reverse"],
    "float": ["default"], "indent": ["width", "first", "blank"], "int": ["default", "base"], "join": ["d", "attribute"], "map": ["attribute", "default"],
    "max": ["case_sensitive", "attribute"], "min": ["case_sensitive", "attribute"], "replace": ["old", "new", "count"], "round": ["precision", "method"],
    "slice": ["slices", "fill_with"], "sort": ["reverse", "case_sensitive", "attribute"], "sum": ["attribute", "start"], "tojson": ["ensure_ascii", "indent", "separators", "sort_keys"],
    "trim": ["chars"], "truncate": ["length", "killwords", "end", "leeway"], "unique": ["case_sensitive", "attribute"], "select": [], "reject": [], "selectattr": [], "rejectattr": [],
    "abs": [], "capitalize": [], "first": [], "last": [], "length": [], "list": [], "lower": [], "reverse": [], "string": [], "title": [], "upper": [], "items": [], "format": [],
}


def random_cases(seed, count):
    """Chains of filters with random arguments, and with operators between."""
    generator = random.Random(seed)

    def arguments(name):
        given = [generator.choice(ARGUMENTS) for _ in range(generator.choice([0, 0, 1, 1, 2, 3]))]
        names = NAMES[name] + ["wrong"]
        given += [f"{key}={generator.choice(ARGUMENTS)}" for key in generator.sample(names, generator.choice([0, 0, 0, 1]) if len(names) else 0)]
        return f"({', '.join(given)})" if given else ""

    def chain():
        text = generator.choice(list(VALUES))
        for _ in range(generator.randint(1, 3)):
            name = generator.choice(list(NAMES))
            text += f"|{name}{arguments(name)}"
        return text

    cases = []
    for _ in range(count):
        text = chain()
        if generator.random() < 0.3:
            text = f"({text}) {generator.choice(['+', '~', '==', '<', 'in', '*', '-', '%', 'and', 'or'])} ({chain()})"
        cases.append("{{ " + text + " }}")
    return cases
