"""The text that steps are calibrated on."""

#: Prose, documentation, code and numbers; the beginnings of "Alice's Adventures in
#: Wonderland" (1865) and of the Gettysburg Address (1863) among them.
TEXT = r'''
Once upon a time there was a small machine in a quiet house by the sea. Every morning it counted
the boats, and every evening it told the children how many had come home. "Seven," it said, "and
one of them is red." The children laughed, because they had painted it themselves.

A computer stores numbers as bits. To add two numbers, it adds their lowest bits first and carries
what is left; that takes 1 cycle here, 2 or 3 there, and in 1948 it took much longer. Programs are
lists of instructions: load, compute, store. If a result is needed before it is ready, the machine
waits. Most of the art is to let it wait for as little as possible.

def mean(values):
    total = sum(values)
    return total / len(values)  # raises ZeroDivisionError for an empty list

What is the capital of France? The capital of France is Paris, a city of two million people on the
river Seine. It is known for its museums, its bread and its bridges. Is it far from London? It is
about 340 kilometres, or two hours and sixteen minutes by train.

Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing
to do: once or twice she had peeped into the book her sister was reading, but it had no pictures
or conversations in it, "and what is the use of a book," thought Alice, "without pictures or
conversations?" So she was considering in her own mind (as well as she could, for the hot day made
her feel very sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the
trouble of getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran
close by her.

Return the index of the first element that is not less than x, as an integer. The list must be
sorted in ascending order; if it is not, the result is undefined and no exception is raised. The
optional arguments lo and hi may be used to specify a part of the list which should be considered;
by default the entire list is used. If key is given, it is called once for each comparison:

    >>> find([1, 3, 5, 8], 5)
    2
    >>> find([], 5)
    0

Raises ValueError if lo is negative. The time is O(log n), that of an insertion O(n), because all
elements behind it are moved.

Four score and seven years ago our fathers brought forth on this continent, a new nation,
conceived in Liberty, and dedicated to the proposition that all men are created equal. Now we are
engaged in a great civil war, testing whether that nation, or any nation so conceived and so
dedicated, can long endure. We are met on a great battle-field of that war.

int main(int argc, char **argv) {
    unsigned long long a = 0, b = 1;
    for (int i = 0; i < 20; i++) {
        printf("%d: %llu\n", i, a);
        unsigned long long next = a + b;
        a = b;
        b = next;
    }
    return 0;
}

Shopping list
1. Apples (2 kg), pears, a lemon
2. Flour, sugar, 250 g of butter
3. Milk; eggs if they are fresh

Dear Ms. Miller,

thank you for your letter of 12 March. We are sorry to hear that the lamp which you ordered on our
website (order no. 40-7731) arrived broken. A new one has been sent today by express mail and
should be with you on Friday. You need not return the old one. Please let us know at
help@example.com if there is anything else that we can do for you.

Yours sincerely,
Peter Brown

The cell is the smallest unit of life. Plants, animals and fungi have cells with a nucleus, which
holds most of the DNA; bacteria have none. Energy comes from mitochondria, in which sugar and
oxygen become carbon dioxide and water. A human body has about thirty-seven trillion cells of some
two hundred kinds, and most of them are replaced within ten years.

{"name": "sensor-12", "unit": "C", "values": [21.5, 21.7, null, 22.0], "valid": true}

User: Can you explain what a random number generator does, and why my program prints the same
numbers each time?
Assistant: A generator computes each number from the one before it, so the whole sequence follows
from where it starts, which is called the seed. Programs that set the seed to a constant always
print the same sequence. There are three ways to change that:

* Do not set a seed; most libraries then take one from the operating system.
* Set it from the clock, if nobody must be able to guess it.
* Use a generator that is made for secrets, such as the module `secrets`.

class Stack:
    """A list of items of which only the last one can be taken.

    Attributes:
        items: what is on the stack, the last one on top
        limit: the largest number of items, or None
    """

    def __init__(self, limit=None):
        self.items, self.limit = [], limit

    def push(self, item):
        if self.limit is not None and len(self.items) >= self.limit:
            raise OverflowError(f"expected at most {self.limit} items")
        self.items.append(item)

In the evening the wind turned to the north. They drew the boat up on the stones, and nobody spoke
of the brother who had not come back. The old man lit the stove. "Tomorrow," he said at last; and
she, who knew him, put a second cup on the table.

Water boils at 100 degrees Celsius at sea level, but at 93 on a mountain of 2,000 metres. If x + 3
= 10, then x = 7. A train that leaves at 8:45 and takes 1 h 50 min arrives at 10:35. The
population of the town grew from 4,120 in 1900 to 19,300 in 2001, or by about 1.5 percent a year.
'''.lstrip()
