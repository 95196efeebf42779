#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/jinja/cases.json: what Jinja2, as transformers sets it up, makes of small
templates. Usage: tools/export-jinja-cases.py [FILE]      (pip install transformers jinja2)

The file holds {"versions", "now", "vars", "cases": [[template, text or null], ...]}; null means that
Python raises. Expressions below stand for "{{ expression }}"; those with braces are whole templates.
"""
import datetime
import json
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils

NOW = 1700000000
VARS = {
    "i": 7, "n": -3, "z": 0, "f": 2.5, "t": True, "no": False, "none_": None,
    "s": "Hello World", "u": "Grüße, 日本🎉", "e": "", "sp": "  a b\t\nc  ", "q": "it's \"x\"",
    "l": [3, 1, 2], "m": ["b", "A", "c", "a"], "ll": [[1, 2], [3, 4], [5, 6]], "el": [],
    "d": {"b": 1, "a": 2, "C": [1, None, 1.5], "items": "own"}, "ed": {},
    "users": [{"name": "Zoe", "age": 30, "tags": ["x"], "on": True},
              {"name": "adam", "age": 25, "tags": [], "on": False},
              {"name": "Bob", "age": 30, "addr": {"city": "X"}, "on": True}],
    "deep": {"a": {"b": [{"c": "end"}]}},
    "floats": [1.0, 0.1, 1e16, 1e15, 123456789.125, 1e-4, 1e-5, 1.5e300, -0.0, 100.0, 3.14159],
    "big": 9007199254740993, "lines": "one\ntwo\r\nthree\n\nfive",
    "json": {"k": "é\"\\/\n\u0001<>&'", "l": [], "o": {}, "n": None, "f": 1e20, "t": [True, 1, 2.0]},
}

ARITHMETIC = """
1 + 2 * 3 - 4
(1 + 2) * 3
7 / 2
8 / 2
7 // 2
-7 // 2
7 // -2
-7 % 3
7 % -3
7.5 // 2
-7.5 // 2
-7.5 % 2
7.5 % -2
5 % 2.5
-4 % 2.0
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
2 ** 0.5
0 ** 0
10 ** 18
10 ** 15 / 3
1 / 3
0.1 + 0.2
1e3
1.5e-7
1_000 + 0x1F + 0o17 + 0b101
0xff
1e400
-1e400
i + t
t + t
-t
+f
- -i
i - n * f
big
big + 1
big / 1
1 / 0
1 // 0
1 % 0
1.0 / 0
0 ** -1
'a' * 3
3 * 'ab'
'a' * -1
[1, 2] * 2
'a' + 'b'
'a' + 1
1 + 'a'
[1] + [2]
(1, 2) + (3,)
[1] + (2,)
{} + {}
none_ + 1
-'a'
undefined_ + 1
'x' ~ 1 ~ none ~ true ~ 2.0 ~ [1] ~ undefined_
1 ~ 2
i ~ '' ~ f
'%s and %s' % ('a', 1)
'%d%%' % 50
'%5.2f|%-6s|%06d|%+d|% d|%x' % (3.14159, 'ab', 42, 7, 8, 255)
'%s' % [1, 'x']
'%s' % none
'%r' % 'q'
'%(a)s' % {'a': 5}
'%s %s' % ('one',)
'%s' % ('a', 'b')
'%5s|%-5s|%.2s' % ('ab', 'ab', 'abcd')
'%i' % 3.9
'%d' % 'x'
'no' % ()
'no' % 1
"""

COMPARISONS = """
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2 == 2 != 1
1 == 1.0
1 == true
true == 1 != false
'a' < 'b'
'a' < 'B'
[1, 2] < [1, 3]
(1, 2) < (1, 2, 0)
[1] == [1.0]
{'a': 1} == {'a': 1.0}
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
[1] == (1,)
'a' == 1
none == none
none == false
undefined_ == undefined_
undefined_ == none
undefined_ != 1
1 < 'a'
none < 1
undefined_ < 1
[] < {}
'a' in 'abc'
'' in 'abc'
'x' not in 'abc'
1 in [1, 2]
1 in (2, 3)
'a' in d
'x' in d
2 in d.values()
'b' in d.keys()
('a', 2) in d.items()
1 in 5
1 in 'abc'
1 in undefined_
'a' in none
3 in range(5)
not 1 in [2]
not true
not ''
not undefined_
1 and 2
0 and 2
'' or 'x'
none or undefined_ or 'z'
1 or undefined_.x
false and undefined_.x
'yes' if i > 5 else 'no'
'yes' if z
('a' if z) is defined
'a' if z else 'b' if no else 'c'
(1 if true else 2) + 1
1 < 2 and 2 < 3 or false
not 1 == 2
1 == 1 == 1
"""

LOOKUPS = """
d.a
d['a']
d.missing
d['missing']
d.missing.x
d.missing['x']
d.items
d['items']
d.get('a')
d.get('zz')
d.get('zz', 5)
d.C[0]
d.C[-1]
d.C[9]
d.C.1
d.C[none_]
deep.a.b[0].c
deep['a']['b'][0]['c']
deep.a.b.0.c
deep.a.x.y
l[0]
l[-1]
l[5]
l['a']
l.x
ll[1][0]
s[0]
s[-1]
s[99]
s.x
u[8]
u[-1]
u[0] ~ u[2]
u|length
i.x
none_.x
none_['x']
none_[0]
i[0]
undefined_
undefined_.x
undefined_['x']
undefined_()
undefined_ is defined
d.a.b.c
{'x': 1}.x
{'x': 1}['x']
{1: 'a', 1.0: 'b', true: 'c'}
{1: 'a'}[true]
{none: 1}[none]
{(1, 2): 'p'}[(1, 2)]
{[1]: 2}
{'a': 1, 'a': 2}
{'a': {'b': [1, {'c': (1,)}]}}
[]
()
(1,)
(1, 2)
[1, 2,]
{}
{'a': 1,}
((1))
d.__class__
d.clear
d.pop('a')
d.setdefault('a', 1)
d.update({'x': 1})
l.append(1)
l.pop()
l.sort()
l.index(1)
l.index(9)
l.count(1)
d.keys()
d.values()
d.items()
d.keys()|list
d.items()|list
d.keys()[0]
d|length
range(3)
range(1, 10, 3)
range(3)|list
range(5, 0, -2)|list
range(10)[2:8:3]
range(10)[::-1]|list
range(10)[3]
range(0)|length
range(1, 2, 0)
range('a')
range(100001)
range(1000000000000)
range(5) == range(5)
dict(a=1, b='x')
dict({'a': 1}, b=2)
dict([('a', 1), ('b', 2)])
dict([1])
dict.fromkeys
namespace(a=1).a
namespace({'a': 2}, b=3).b
namespace(a=1).zz
namespace(a=1)
namespace(_a=1)
loop
caller
raise_exception('stop')
raise_exception('stop ' ~ i)
strftime_now('%Y-%m-%d %H:%M:%S')
strftime_now('%d %B %Y, %A %j %f|%Z|%z%%')
strftime_now('')
s.upper
cycler('a', 'b').next()
joiner()()
"""

SLICES = """
l[:]
l[1:]
l[:1]
l[-2:]
l[::-1]
l[::2]
l[5:]
l[-9:2]
l[2:0:-1]
l[::-2]
l[1:1]
l[none_:2]
l[::0]
l['a':]
l[1.0:]
s[1:4]
s[::-1]
s[-3:]
s[:-1]
s[::3]
s[10:2:-3]
u[1:4]
u[::-1]
u[-2:]
u[::2]
e[::-1]
(1, 2, 3)[1:]
(1, 2, 3)[::-1]
d[1:]
none_[1:]
undefined_[1:]
i[1:]
'abc'[1:][0]
s[:5][::-1]
l[1:][0]
l[9223372036854775807:]
l[::9223372036854775807]
l[::-9223372036854775807]
s[-9223372036854775807:2]
"""

METHODS = """
s.upper()
s.lower()
s.swapcase()
s.title()
'they\\'re bill\\'s'.title()
'hELLO wORLD'.capitalize()
'straße'.upper()
'ﬁn'.upper()
'ΑΣ ΣΑΣ'.lower()
'İ'.lower()
'ǆ'.title()
u.upper()
u.lower()
sp.strip()
sp.lstrip()
sp.rstrip()
'xxaxx'.strip('x')
'abcba'.strip('ab')
'日本日'.strip('日')
'\u00a0\u2003x\u3000'.strip()
'xa'.lstrip('')
s.split()
sp.split()
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,,c'.split(',', maxsplit=2)
'a,b,,c'.rsplit(',', 1)
' a  b  c '.split(none, 1)
' a  b  c '.rsplit(none, 1)
' a  b  c '.rsplit(maxsplit=2)
''.split()
''.split(',')
'abc'.split('')
'a<think>b</think>c'.split('</think>')[-1].lstrip('\\n')
lines.splitlines()
lines.splitlines(true)
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('-')
'abc'.rpartition('-')
s.startswith('Hell')
s.startswith(('x', 'H'))
s.startswith('World', 6)
s.endswith('ld')
s.endswith(('x', 'd'))
s.endswith('lo', 0, 5)
s.startswith(1)
s.find('o')
s.find('o', 5)
s.find('zz')
s.rfind('o')
u.find('日')
u.rfind('ß')
s.index('W')
s.index('zz')
s.count('o')
s.count('')
'aaaa'.count('aa')
u.count('')
s.replace('l', 'L')
s.replace('l', 'L', 1)
'abc'.replace('', '-')
'日本'.replace('', '-')
'abc'.replace('', '-', 2)
'aaa'.replace('aa', 'b')
s.replace('o', '')
s.replace('zz', 'y')
s.removeprefix('Hello ')
s.removesuffix('World')
s.removeprefix('x')
', '.join(m)
'-'.join('abc')
', '.join([1])
''.join([])
'5'.zfill(3)
'-5'.zfill(4)
'ab'.ljust(5) ~ '|'
'ab'.rjust(5, '.')
'ab'.center(7, '*')
'ab'.center(6, '*')
'abc'.center(6, '*')
'abc'.isalpha()
'ab1'.isalpha()
'日本'.isalpha()
'123'.isdigit()
'²'.isdigit()
'²'.isdecimal()
'½'.isnumeric()
''.isdigit()
'a1'.isalnum()
' \\t'.isspace()
''.isspace()
'abc'.islower()
'Abc'.islower()
'ABC1'.isupper()
'123'.isupper()
'abc'.isascii()
u.isascii()
'a\tb'.expandtabs(4)
'{} {}'.format('a', 1)
'{0} {1} {0}'.format('a', 'b')
'{x} {y}'.format(x=1, y='z')
'{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}'.format('a', 'b', 'c', 42, 3.14159, 1234567)
'{:*^9}'.format('mid')
'{!r}'.format('q')
'{0[a]} {1.x}'.format({'a': 1}, {'x': 2})
'{{}} {}'.format(1)
'{}'.format()
'{'.format(1)
'}'.format(1)
'{a}'.format(b=1)
'{:+d} {:x} {:#x} {:e}'.format(5, 255, 255, 12345.678)
s.nothing()
s.upper(1)
s.split(',', 1, 2)
s.replace('a')
5.upper()
'a'.join(5)
d.get()
d.keys(1)
d.copy()
l.copy()
"""

FILTERS = """
s|upper
s|lower
s|title
'foo-bar (baz) [qux]  x'|title
s|capitalize
sp|trim
'xxaxx'|trim('x')
i|trim
s|replace('o', '0')
s|replace('o', '0', 1)
i|replace('7', '8')
s|length
l|length
d|length
undefined_|length
i|length
none_|length
l|count
m|join
m|join(', ')
l|join('-')
users|join(', ', attribute='name')
[1, none, 2.0]|join(' ')
u|join('.')
none_|join
i|join
undefined_|join(',')
l|first
l|last
el|first
el|last
s|first
s|last
d|first
d|last
el|first is defined
undefined_|last
[1, 2]|sort(attribute='age')
'x' % undefined_
undefined_|first
none_|first
l|sort
l|sort(reverse=true)
m|sort
m|sort(case_sensitive=true)
users|sort(attribute='age')|map(attribute='name')|list
users|sort(attribute='age,name')|map(attribute='name')|join(',')
users|sort(attribute='name', reverse=true)|map(attribute='name')|list
[1, 'a']|sort
d|sort
l|reverse|list
l|reverse
s|reverse
d|reverse|list
l|list
s|list
d|list
i|list
l|unique|list
['a', 'A', 'b', 1, 1.0, true]|unique|list
['a', 'A']|unique(case_sensitive=true)|list
users|unique(attribute='age')|map(attribute='name')|list
l|sum
[1, 2.5]|sum
el|sum
l|sum(start=10)
users|sum(attribute='age')
m|sum
l|min
l|max
m|min
m|max
el|max
users|max(attribute='age')
(users|min(attribute='age')).name
d|dictsort
d|dictsort(true)
d|dictsort(reverse=true)
{'x': 2, 'y': 1}|dictsort(by='value')
{'x': 2, 'y': 1}|dictsort(false, 'value', true)
d|dictsort(by='zz')
d|items|list
undefined_|items|list
l|items
d|items|first
users|map(attribute='name')|list
users|map(attribute='addr.city')|list
users|map(attribute='addr', default='-')|list
users|map(attribute='addr.city', default='-')|list
m|map('upper')|list
l|map('string')|join
[1.5, '2', 'x']|map('int')|list
m|map('replace', 'a', 'Z')|list
m|map('default', 'x')|list
m|map('nofilter')|list
m|map|list
users|selectattr('on')|map(attribute='name')|list
users|rejectattr('on')|map(attribute='name')|list
users|selectattr('age', 'equalto', 30)|map(attribute='name')|list
users|selectattr('age', '==', 25)|map(attribute='name')|list
users|selectattr('age', '>', 26)|list|length
users|selectattr('addr', 'defined')|list|length
users|selectattr('addr.city', 'defined')|list|length
users|rejectattr('name', 'in', ['Bob'])|map(attribute='name')|list
users|selectattr('tags', 'none')|list
l|select('odd')|list
l|select('gt', 1)|list
l|reject('even')|list
[0, 1, '', 'a', none]|select|list
[0, 1, '', 'a', none]|reject|list
l|select('nope')|list
undefined_|select('odd')|list
i|select|list
l|map('upper')|first
(l|select('odd'))|length
users|selectattr('on') is iterable
(users|selectattr('zz')|list)|length
users|groupby('age')
users|groupby('age')|map('first')|list
users|groupby('addr.city', default='NY')|map('first')|list
[1, 2, 3, 4, 5]|batch(2)|list
[1, 2, 3]|batch(2, 'x')|list
[1, 2, 3, 4, 5]|slice(2)|list
[1, 2, 3]|slice(2, 'x')|list
undefined_|default('x')
none_|default('x')
none_|default('x', true)
''|default('x', boolean=true)
undefined_|default
undefined_|d('y')
d.zz|default(d.a)
i|string
f|string ~ 'x'
[1]|string
none_|string
undefined_|string
'42'|int
'42.7'|int
' 42 '|int
'x'|int
'x'|int(5)
'x'|int(default=none)
'1_000'|int
'0x1F'|int(base=16)
'ff'|int(0, 16)
'-7'|int
none_|int
l|int
t|int
2.9|int
-2.9|int
'1e3'|int
undefined_|int
'1.5'|float
'x'|float
'x'|float(2.5)
i|float
'inf'|float
'nan'|float
' 1e-3 '|float
-5|abs
(-5)|abs
n|abs
(-2.5)|abs
'x'|abs
2.5|round
3.5|round
2.567|round(2)
2.5|round(0, 'ceil')
2.549|round(1, 'floor')
7|round
-2.5|round
1234.5|round|int
2.5|round(method='x')
s|safe
'<b>'|e
'<b>&"\\''|escape
('<b>'|safe) + '<i>'
'<i>' + ('<b>'|safe)
('<b>'|safe) ~ '<i>'
'<b>'|safe|e
'<b>'|e|forceescape
lines|indent
lines|indent(2)
lines|indent(2, true)
lines|indent(2, first=true, blank=true)
lines|indent('> ')
'a'|indent
''|indent(2, true)
i|indent
'foo bar baz qux'|truncate(9)
'foo bar baz qux'|truncate(9, true)
'foo bar baz qux'|truncate(11)
'foo bar baz qux'|truncate(11, false, '...', 0)
'日本日本日本日本日本'|truncate(5, true, '…', 0)
'abc'|truncate(2)
s|wordcount
u|wordcount
'a b'|center(9) ~ '|'
'%s-%s'|format('a', 2)
'%(x)s'|format(x=5)
s|attr('upper')
d|attr('a')
d|attr('get')('a')
s|upper|lower|title
(s|upper)[0]
s|upper ~ 'x'
-1|abs
1 + 2|string|length
[1, 2]|first + 1
d|tojson
d|tojson(indent=2)
json|tojson
json|tojson(indent=4)
json|tojson(ensure_ascii=true)
u|tojson(ensure_ascii=true)
json|tojson(sort_keys=true)
{'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true, indent=1)
d|tojson(separators=(',', ':'))
d|tojson(indent=2, separators=(';', '='))
[]|tojson(indent=2)
{}|tojson(indent=2)
[[], {}]|tojson(indent=2)
[1]|tojson(indent=0)
[1]|tojson(indent='--')
floats|tojson
s|tojson
none_|tojson
t|tojson
(1, 2)|tojson
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
{(1, 2): 3}|tojson
undefined_|tojson
[undefined_]|tojson
range(3)|tojson
d.items()|tojson
(1e400)|tojson
'\x7f\x1f'|tojson
'\x7f'|tojson(ensure_ascii=true)
{'b': 1, 2: 1}|tojson(sort_keys=true)
m|map('tojson')|join
"""

TESTS = """
i is defined
undefined_ is defined
undefined_ is undefined
undefined_ is not defined
d.zz is defined
d.a is defined
none_ is none
none_ is not none
undefined_ is none
i is number
f is number
t is number
s is number
i is integer
t is integer
f is integer
f is float
t is boolean
i is boolean
t is true
no is false
1 is true
s is string
l is string
u|safe is string
l is sequence
s is sequence
d is sequence
i is sequence
d.keys() is sequence
range(3) is sequence
undefined_ is sequence
d is mapping
l is mapping
namespace(a=1) is mapping
l is iterable
s is iterable
i is iterable
undefined_ is iterable
d is iterable
range is callable
s.upper is callable
s is callable
undefined_ is callable
i is odd
i is even
2.0 is even
'a' is odd
i is divisibleby 7
i is divisibleby(2)
9 is divisibleby 3 and true
i is in [7, 8]
i is not in [7, 8]
'a' is in 'abc'
i is eq 7
i is equalto 8
i is ne 8
i is gt 5
i is ge(7)
i is lt 5
i is le 7
i is greaterthan 3
i is lessthan 3
'abc' is lower
'ABC' is upper
'aBc' is lower
none_ is sameas none
t is sameas true
1 is sameas true
l is sameas l
l is sameas [3, 1, 2]
'upper' is filter
'nope' is filter
'odd' is test
s is escaped
s|safe is escaped
not i is odd
i is odd and f is float
i is not odd
i is defined is true
l is not string and l is iterable
i is number == true
"""

PRINTING = """
floats
1.0
1e16
1e15
123456789012345680.0
0.0001
0.00001
1.5e300
5e-324
1.7976931348623157e308
2.0 * 3
-0.0
1e400 - 1e400
true
none
[true, none, 'a', "b'c", 'd"e', "f'g\\"h", 'back\\\\slash']
'\\n\\t\\r\\x01\\x7f\\xa0\\u200b\\u2028\\U0001F389é'
['\\n\\t\\r\\x01\\x7f\\xa0\\u200b\\u2028\\U0001F389é']
['\\u0378', '\\ue000', '\\uffff', '\\ufeff']
d
users[0]
{'a': [1, (2,)], 'b': {'c': none}}
[undefined_]
[s|safe]
s
'con' 'cat' "ed"
'a\\qb'
'\\101\\60'
"tab\\there"
'line\\
continued'
l|map('string')|list
[range(3)]
[d.keys()]
(1, 'a', 2.5, none)
namespace(a=[1], b='x')
"""

TEMPLATES = [
    "{% if i %}a{% endif %}b", "{% if z %}a{% elif i %}b{% else %}c{% endif %}",
    "{% if z %}a{% elif none_ %}b{% else %}c{% endif %}", "{% if undefined_ %}a{% endif %}",
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "a\n  {% if t %}\n  b\n  {% endif %}\nc\n\n",
    "a\n  {%- if t -%}\n  b\n  {%- endif -%}\nc", "a\n  {%+ if t %}\n  b\n  {%+ endif +%}\nc",
    "a {{- i -}} b", "a {{ i }}\nb", "a\n  {{ i }}\n  b\n", "a \n\n {#- c -#} \n\n b",
    "a\n  {# c #}\nb", "a\n  {# c +#}\nb", "x{# multi\nline #}y", "{{ i }}{# {% if %} #}",
    "{% raw %}{{ x }} {% if %}{% endraw %}", "a\n  {% raw %}\n  {{ x }}\n  {% endraw %}\nb",
    "a  {%- raw -%}  {{ x }}  {%- endraw -%}  b", "\r\na\r\nb\rc\n", "a\n", "a\n\n", "\n", "",
    "  {% if t %}x{% endif %}", "  {% if t %}  {% if t %} y {% endif %}\n{% endif %}z",
    "\t{% if t %}x", "{{ '}}' }}", "{{ '%}' ~ \"{{\" }}", "{{ {'a': {'b': 1}}}}", "{{ {}}}",
    "{% for x in l %}{{ x }}{% endfor %}", "{% for x in el %}{{ x }}{% else %}empty{% endfor %}",
    "{% for x in undefined_ %}{{ x }}{% else %}empty{% endfor %}", "{% for x in none_ %}{% endfor %}",
    "{% for x in i %}{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for k in d %}{{ k }},{% endfor %}", "{% for k, v in d.items() %}{% endfor %}",
    "{% for k, v in users[0].items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in users[0]|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in users[0]|dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for a, b in ll %}{{ a }}-{{ b }} {% endfor %}", "{% for a, b, c in ll %}{% endfor %}",
    "{% for (a, b) in ll %}{{ a + b }} {% endfor %}", "{% for a in ll %}{{ a }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for x in l if x != 1 %}{{ loop.previtem|default('-') }}{{ loop.nextitem|default('-') }}{{ loop.last }} {% endfor %}",
    "{% for x in m %}{{ loop.cycle('o', 'e') }}{% endfor %}", "{% for x in l %}{{ loop.cycle() }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in l %}{{ loop }}{% endfor %}", "{% for x in l %}{{ loop.zz }}{% endfor %}",
    "{% for x in l %}{% for y in m %}{{ loop.index }}{% endfor %}{{ loop.index }}|{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}no{% endfor %}",
    "{% for x in l %}{% break %}{% else %}no{% endfor %}", "{% break %}", "{% continue %}",
    "{% for x in l %}{% set y = x %}{% endfor %}{{ y }}{{ x }}", "{{ loop }}{% for x in l %}{% endfor %}{{ loop }}",
    "{% set y = 0 %}{% for x in l %}{% set y = y + x %}{{ y }} {% endfor %}{{ y }}",
    "{% set ns = namespace(y=0) %}{% for x in l %}{% set ns.y = ns.y + x %}{{ ns.y }} {% endfor %}{{ ns.y }}",
    "{% for x in l %}{% if loop.first %}{% set k = 1 %}{% endif %}{{ k }}{% endfor %}",
    "{% set k = 5 %}{% for x in l %}{{ k }}{% set k = x %}{{ k }} {% endfor %}",
    "{% for i in l %}{{ i }}{% endfor %}{{ i }}", "{% for loop in l %}{{ loop }}{% endfor %}",
    "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}", "{% set a, b = [1] %}", "{% set a, b = 'xy' %}{{ b }}{{ a }}", "{% set (a, b) = l %}",
    "{% set d.x = 1 %}", "{% set undefined_.x = 1 %}", "{% set ns = namespace() %}{% set ns.a = [1] + [2] %}{{ ns.a }}{{ ns.b is defined }}",
    "{% set ns = namespace() %}{% set ns._a = 1 %}", "{% set ns = namespace(a=1) %}{{ ns['a'] }}", "{% set i = i + 1 %}{{ i }}",
    "{% set ns = namespace(a=1) %}{% set ns.a, x = 5, 6 %}{{ ns.a }}{{ x }}",
    "{% set x %}a{{ i }}b{% endset %}[{{ x }}]", "{% set x | upper %}abc{% endset %}{{ x }}",
    "{% set x | replace('a', 'b') | upper %}aab{% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y }}",
    "{% set ns = namespace() %}{% set ns.x %}abc{% endset %}{{ ns.x }}", "{% set x %}  {% endset %}{{ x|length }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aab{% endfilter %}",
    "{% filter trim %}  x  {% endfilter %}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% for x in l %}{% with y = x %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endwith %}{% endfor %}",
    "{% macro f() %}x{% endmacro %}{{ f() }}{{ f() }}", "{% macro f(a, b=2) %}{{ a }}{{ b }} {% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a=4) }}{{ f() }}",
    "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}", "{% macro f(a) %}{{ a.x }}{% endmacro %}{{ f() }}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}", "{% macro f(a=i) %}{{ a }}{% endmacro %}{% set i = 9 %}{{ f() }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(c=2) }}",
    "{% macro f(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, k=4) }}", "{% macro f() %}{{ varargs|length }}{% endmacro %}{{ f() }}{{ f(1) }}",
    "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}in{{ i }}{% endcall %}", "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ caller(5, b=6) }}{% endmacro %}{% call(a, b) f() %}{{ a }}-{{ b }}{% endcall %}",
    "{% macro f(x) %}{{ x }}{% if caller %}{{ caller() }}{% endif %}{% endmacro %}{{ f(1) }}{% call f(2) %}c{% endcall %}",
    "{% macro f() %}{{ i }}{% set i = 1 %}{{ i }}{% endmacro %}{{ f() }}{{ i }}", "{% set k = 1 %}{% macro f() %}{{ k }}{% endmacro %}{% set k = 2 %}{{ f() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{{ f() }}{% macro f() %}x{% endmacro %}",
    "{% macro f() %}x{% endmacro %}{{ f }}{{ f.name }}{{ f is callable }}", "{% macro f() %} a {% endmacro %}{{ f()|trim }}|",
    "{% macro f(x) %}{% for y in x %}{{ y }}{% if not loop.last %},{% endif %}{% endfor %}{% endmacro %}{{ f(l) }} {{ f(m) }}",
    "{% for x in l %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}{% endfor %}", "{% if t %}{% macro f() %}x{% endmacro %}{% endif %}{{ f() }}",
    "{% macro f(*a) %}{% endmacro %}", "{% macro f(a=1, b) %}{% endmacro %}", "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}",
    "{% macro f(a, b, c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(*[1], **{'b': 5, 'c': 6}) }}", "{{ dict(**{'a': 1}) }}", "{{ dict(a=1, **{'a': 2}) }}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is number %}{{ x }}{% else %}({{ loop(x) }}){% endif %}{% endfor %}",
    "{% for x in l %}{{ loop(l) }}{% endfor %}", "{% for x in [[1], [2, 3]] recursive %}{{ loop.depth }}{{ loop(x) if x is iterable }}{% endfor %}",
    "{% generation %}a{{ i }}{% endgeneration %}b", "{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "{% generation %}{% set g = 1 %}{{ g }}{% endgeneration %}{{ g }}", "{% print i %}{% print i, s %}", "{% for x in l: %}{{ x }}{% endfor %}",
    "{% set it = l|select('odd') %}{% for x in it %}{{ x }}{% endfor %}{% for x in it %}{{ x }}{% endfor %}", "{% set it = l|map('string') %}{{ it|first }}{{ it|list }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.next() }}",
    "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set ns = namespace(found=false) %}{% for x in l if not ns.found %}{{ x }}{% set ns.found = true %}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for x in l if ns.n < 2 %}{{ x }}{{ loop.length }}{% set ns.n = ns.n + 1 %}{% endfor %}", "{% set range = 5 %}{{ range }}", "{% set x = namespace %}{{ x(a=1).a }}",
    "{{ [1, 2", "{{ 1 }", "{% if %}", "{% if t %}", "{% endif %}", "{% for x %}{% endfor %}", "{% for x in %}{% endfor %}", "{{ }}", "{{ 1 2 }}", "{{ a b }}", "{{ (1 }}", "{{ 1) }}", "{{ [1) }}",
    "{{ 'abc }}", "{{ a. }}", "{{ a.'b' }}", "{{ a[ }}", "{{ | upper }}", "{{ s | }}", "{{ s | nofilter }}", "{{ s is notest }}", "{{ s is }}", "{{ 1 + }}", "{{ not }}", "{{ ! }}", "{{ a ? b : c }}", "{{ a && b }}", "{{ $x }}", "{# open",
    "{% raw %}x", "{% set %}", "{% set x %}", "{% set 1 = 2 %}", "{% set x = %}", "{% set true = 1 %}", "{% set x.y.z = 1 %}", "{% set x[0] = 1 %}", "{% call s %}{% endcall %}", "{% unknown %}", "{% macro %}{% endmacro %}", "{% macro f %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ f(**x, *y) }}", "{{ x is a is b }}", "{% if t %}{% endfor %}", "{% else %}", "{{ 1_ }}", "{{ 01 }}", "{{ 1.e }}", "{{ 1..2 }}", "{{ '\\x' }}", "{{ '\\u12' }}",
    "{{ 0.5.is_integer }}", "{{ s.upper()()}}", "{{ s() }}", "{{ 5() }}", "{{ none() }}", "{{ 'a' 'b' ~ 'c' }}", "{{ -5 | abs }}", "{{ 2 * 3 | string }}", "{{ not true | string }}", "{{ 'x' is string and not false }}", "{{ l | length > 2 }}", "{{ (l | length) * 2 }}", "{{ l|length-1 }}", "{{ 10 - l | length - 1 }}", "{{ i if i is odd else 0 }}", "{{ 'A' if i is defined and i is not none else 'B' }}", "{{ s.split(' ')|map('lower')|join('_') }}", "{{ users[0].name[0] | lower }}", "{{ users | map(attribute='name') | map('upper') | join(', ') }}", "{{ 'a' ~ 'b' if t else 'c' }}", "{{ 1 if t }}{{ 1 if no }}", "{{ {'a': 1, **{'b': 2}} }}", "{{ [*l] }}", "{{ l[0, 1] }}", "{{ {1: 'x', (0, 1): 'y'}[0, 1] }}", "{{ x = 1 }}", "{{ lambda: 1 }}", "{{ a if b else }}", "{{ d.items()|length }}", "{{ (d.items()|list)[0][1] }}", "{{ '%s' % x }}", 
]

GROUPS = [ARITHMETIC, COMPARISONS, LOOKUPS, SLICES, METHODS, FILTERS, TESTS, PRINTING]


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


chat_template_utils.datetime = FixedTime


def render(source):
    try:
        return chat_template_utils._compile_jinja_template(source).render(**VARS)
    except Exception:
        return None


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/jinja/cases.json"
    sources = []
    for group in GROUPS:
        text = group.strip("\n").replace("\\\n", "\0")
        sources += ["{{ " + line.replace("\0", "\\\n") + " }}" for line in text.split("\n")]
    sources += TEMPLATES
    cases = []
    for source in sources:
        text = render(source)
        if text is not None and " at 0x" in text:
            continue  # an address
        cases.append([source, text])
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__,
                "python": sys.version.split()[0]}
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"versions":%s,"now":%d,\n"vars":%s,\n"cases":[\n' %
                (json.dumps(versions), NOW, json.dumps(VARS, ensure_ascii=True)))
        f.write(",\n".join(json.dumps(c, ensure_ascii=True) for c in cases))
        f.write("\n]}\n")
    print(len(cases), "cases,", sum(t is None for _, t in cases), "of them errors")


main()
